// Values as text that does not depend on the run: what two implementations have to agree on.
"use strict";

const { createHash } = require("node:crypto");
const { Readable } = require("node:stream");

// Members that differ from call to call.
const VARYING = new Set(["requestId", "extendedRequestId", "RequestId", "HostId", "UploadId", "totalRetryDelay"]);

function ofError(error) {
  const members = {};
  for (const name of Object.keys(error)) {
    members[name] = error[name];
  }
  return { is: "error", name: error.name, message: error.message, members: plain(members) };
}

function plain(value) {
  if (value === undefined) return { is: "undefined" };
  if (typeof value !== "object" || value === null) return value;
  if (value instanceof Error) return ofError(value);
  if (value instanceof Date) return { is: "date", valid: !Number.isNaN(value.getTime()) };
  if (value instanceof Readable) return { is: "stream" };
  if (value instanceof Uint8Array) {
    return { is: value.constructor.name, sum: createHash("sha256").update(value).digest("hex") };
  }
  if (Array.isArray(value)) return value.map(plain);
  const out = {};
  for (const name of Object.keys(value).sort()) {
    // A member that is undefined, and one that is not there, are the same to a function.
    if (value[name] !== undefined) {
      out[name] = VARYING.has(name) ? "varies" : plain(value[name]);
    }
  }
  return out;
}

module.exports = { plain };
