// The loop over events: one at a time, answered once.
"use strict";

const contexts = require("./context");
const { RuntimeError, shape } = require("./errors");
const { load } = require("./handler");
const streams = require("./streams");

// Statuses of Lambda's own runtime after an error that nobody caught.
const UNHANDLED_REJECTION = 128;
const UNCAUGHT_EXCEPTION = 129;

// The answer of an invocation, given once: `{ result }`, `{ bytes }` or `{ error }`.
function pending() {
  const state = { isSettled: false, waits: undefined };
  state.promise = new Promise((resolve) => {
    state.settle = (answer) => {
      state.isSettled = true;
      state.waits = undefined;
      resolve(answer);
    };
  });
  return state;
}

// Runs the handler in all of its forms: callback, promise, stream.
function run(handler, event, invocation, headers, id) {
  const callback = (error, result) => {
    if (error !== undefined && error !== null) {
      invocation.settle({ error });
    } else if (context.callbackWaitsForEmptyEventLoop) {
      invocation.waits = { result };
    } else {
      invocation.settle({ result });
    }
  };
  const context = contexts.create(id, headers, callback);
  if (streams.isStreaming(handler)) {
    const { stream, ended } = streams.collect();
    const done = Promise.resolve(handler(event, stream, context)).then(() => ended);
    done.then(
      (bytes) => invocation.settle({ bytes }),
      (error) => invocation.settle({ error }),
    );
    return;
  }
  const returned = handler(event, context, callback);
  if (typeof returned?.then === "function") {
    returned.then(
      (result) => invocation.settle({ result }),
      (error) => invocation.settle({ error }),
    );
  }
}

// The result as JSON.
function text(result) {
  try {
    return JSON.stringify(result === undefined ? null : result) ?? "null";
  } catch (error) {
    const why = `Unable to stringify response body: ${error.message}`;
    throw new RuntimeError("Runtime.MarshalError", why, error);
  }
}

async function answer(api, id, said) {
  let error = said.error;
  if (!("error" in said)) {
    try {
      await api.respond(id, said.bytes ?? text(said.result));
      return;
    } catch (failed) {
      error = failed;
    }
  }
  await report(api, id, error);
}

// Reports an error, and prints it as Lambda does.
async function report(api, id, error) {
  const form = shape(error);
  console.error("Invoke Error ", JSON.stringify({ ...form, stack: form.trace, trace: undefined }));
  await api.fail(id, form);
}

// An error that nobody caught ends the process, after the caller has it.
function watch(api, current) {
  const end = (error, status) => {
    const form = shape(error);
    console.error("Uncaught Exception ", JSON.stringify(form));
    const told = current.id ? api.fail(current.id, form) : api.initError(form);
    const leave = () => process.exit(status);
    told.then(leave, leave);
  };
  process.on("uncaughtException", (error) => end(error, UNCAUGHT_EXCEPTION));
  process.on("unhandledRejection", (reason) => {
    const error = new RuntimeError("Runtime.UnhandledPromiseRejection", `${reason}`, reason);
    end(error, UNHANDLED_REJECTION);
  });
  // Nothing is left to do: what a callback has said is the answer, or there is none.
  process.on("beforeExit", () => {
    const { invocation } = current;
    if (invocation && !invocation.isSettled) {
      invocation.settle(invocation.waits ?? { result: null });
    }
  });
}

// Loads the handler of `_HANDLER` below `root`, and serves events until the host ends the process.
exports.serve = async function serve(api, root, log) {
  const current = { id: undefined, invocation: undefined };
  watch(api, current);
  let handler;
  try {
    handler = await load(root, process.env._HANDLER);
  } catch (error) {
    const form = shape(error);
    console.error("Uncaught Exception ", JSON.stringify(form));
    await api.initError(form);
    process.exit(1);
  }
  for (;;) {
    const { id, headers, body } = await api.next();
    const invocation = pending();
    Object.assign(current, { id, invocation });
    log.id = id;
    process.env._X_AMZN_TRACE_ID = headers["lambda-runtime-trace-id"] ?? "";
    try {
      run(handler, JSON.parse(body), invocation, headers, id);
    } catch (error) {
      invocation.settle({ error });
    }
    await answer(api, id, await invocation.promise);
    Object.assign(current, { id: undefined, invocation: undefined });
  }
};
