// `console` with Lambda's lines: time, request, level, text, separated by tabs.
"use strict";

const fs = require("node:fs");
const util = require("node:util");

const LEVELS = { log: "INFO", info: "INFO", debug: "DEBUG", warn: "WARN", error: "ERROR" };

// Writes all of it, even if the pipe is full.
function write(text) {
  let rest = Buffer.from(text);
  while (rest.length > 0) {
    try {
      rest = rest.subarray(fs.writeSync(1, rest));
    } catch (error) {
      if (error.code !== "EAGAIN") {
        return;
      }
    }
  }
}

// Replaces the methods of `console`; the result has `id`, the request of the lines.
exports.install = function install() {
  const current = { id: undefined };
  const line = (level, values) => {
    const text = util.format(...values);
    write(`${new Date().toISOString()}\t${current.id}\t${level}\t${text}\n`);
  };
  for (const [name, level] of Object.entries(LEVELS)) {
    console[name] = (...values) => line(level, values);
  }
  console.trace = (...values) => {
    const stack = { name: "Trace", message: util.format(...values) };
    Error.captureStackTrace(stack, console.trace);
    line("TRACE", [stack.stack]);
  };
  return current;
};
