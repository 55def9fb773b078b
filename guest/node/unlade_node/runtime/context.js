// The second argument of a handler.
"use strict";

function parsed(text) {
  try {
    return text ? JSON.parse(text) : undefined;
  } catch {
    return undefined;
  }
}

// The context of an event; `settle(error, result)` serves the three old methods.
exports.create = function create(id, headers, settle) {
  const deadline = Number(headers["lambda-runtime-deadline-ms"]);
  const context = {
    callbackWaitsForEmptyEventLoop: true,
    functionName: process.env.AWS_LAMBDA_FUNCTION_NAME,
    functionVersion: process.env.AWS_LAMBDA_FUNCTION_VERSION,
    memoryLimitInMB: process.env.AWS_LAMBDA_FUNCTION_MEMORY_SIZE,
    logGroupName: process.env.AWS_LAMBDA_LOG_GROUP_NAME,
    logStreamName: process.env.AWS_LAMBDA_LOG_STREAM_NAME,
    awsRequestId: id,
    invokedFunctionArn: headers["lambda-runtime-invoked-function-arn"],
    clientContext: parsed(headers["lambda-runtime-client-context"]),
    identity: parsed(headers["lambda-runtime-cognito-identity"]),
    getRemainingTimeInMillis: () => deadline - Date.now(),
    done: (error, result) => settle(error, result),
    succeed: (result) => settle(null, result),
    fail: (error) => settle(error ?? "handled"),
  };
  return context;
};
