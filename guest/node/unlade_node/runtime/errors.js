// Errors in Lambda's form: `errorType`, `errorMessage` and `trace`.
"use strict";

// An error of the runtime itself; `name` is one of Lambda's types, such as
// `Runtime.HandlerNotFound`.
class RuntimeError extends Error {
  constructor(name, message, cause) {
    super(message);
    this.name = name;
    if (cause && typeof cause.stack === "string") {
      this.stack = `${name}: ${message}\n${cause.stack}`;
    }
  }
}

// True for errors of every realm, and for what looks like one.
function isError(value) {
  return (
    value instanceof Error ||
    (typeof value === "object" &&
      value !== null &&
      typeof value.name === "string" &&
      typeof value.message === "string" &&
      typeof value.stack === "string")
  );
}

// The form of any thrown value.
function shape(thrown) {
  try {
    if (isError(thrown)) {
      const stack = typeof thrown.stack === "string" ? thrown.stack.split("\n") : [];
      return { errorType: String(thrown.name), errorMessage: String(thrown.message), trace: stack };
    }
    return { errorType: typeof thrown, errorMessage: String(thrown), trace: [] };
  } catch {
    const why = "the thrown value has no readable name, message and stack";
    return { errorType: "handled", errorMessage: why, trace: [] };
  }
}

module.exports = { RuntimeError, shape };
