// The program of an instance: loads the function's handler, and serves Lambda's Runtime API.
"use strict";

const loader = require("./loader");
const api = require("./runtime/api");
const { serve } = require("./runtime/serve");

process.env.AWS_EXECUTION_ENV = `AWS_Lambda_nodejs${process.versions.node.split(".")[0]}.x`;
require("./runtime/streams").install();
const log = require("./runtime/console").install();
if (process.env.NODE_SDK_STUB !== "off") {
  loader.install();
}
serve(api.client(process.env.AWS_LAMBDA_RUNTIME_API), process.env.LAMBDA_TASK_ROOT, log);
