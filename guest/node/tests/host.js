// A Runtime API for tests, and an instance that it serves.
"use strict";

const { spawn } = require("node:child_process");
const fs = require("node:fs");
const http = require("node:http");
const os = require("node:os");
const path = require("node:path");

const BOOTSTRAP = path.join(__dirname, "../unlade_node/bootstrap.js");

async function body(request) {
  const pieces = [];
  for await (const piece of request) {
    pieces.push(piece);
  }
  return Buffer.concat(pieces);
}

// A directory with these files, removed at the end of the test `t`.
function directory(t, files) {
  const root = fs.mkdtempSync(path.join(os.tmpdir(), "unlade-node-"));
  t.after(() => fs.rmSync(root, { recursive: true, force: true }));
  for (const [name, content] of Object.entries(files)) {
    fs.mkdirSync(path.dirname(path.join(root, name)), { recursive: true });
    fs.writeFileSync(path.join(root, name), content);
  }
  return root;
}

// Starts an instance of the function in `root`. `invoke(event)` resolves with `{ kind, body }`,
// where kind is `response` or `error`; `ended` with the exit status, and `init` with the error of
// the start. `lines(count)` waits
// for so many printed lines.
async function start(t, root, handler, variables = {}, flags = []) {
  const waiting = [];
  const asked = [];
  let init;
  let count = 0;
  const results = new Map();
  const initError = new Promise((resolve) => {
    init = resolve;
  });
  const give = () => {
    while (waiting.length > 0 && asked.length > 0) {
      const { id, event, resolve } = waiting.shift();
      results.set(id, resolve);
      const response = asked.shift();
      response.writeHead(200, {
        "Lambda-Runtime-Aws-Request-Id": id,
        "Lambda-Runtime-Deadline-Ms": Date.now() + 30_000,
        "Lambda-Runtime-Invoked-Function-Arn": "arn:aws:lambda:us-east-1:0:function:f",
        "Lambda-Runtime-Trace-Id": `Root=1-${id}`,
      });
      response.end(JSON.stringify(event));
    }
  };
  const server = http.createServer(async (request, response) => {
    const parts = request.url.split("/").slice(3);
    if (parts.join("/") === "invocation/next") {
      asked.push(response);
      give();
      return;
    }
    const sent = await body(request);
    response.writeHead(202).end();
    if (parts[0] === "init") {
      init(JSON.parse(sent));
    } else {
      results.get(parts[1])?.({ kind: parts[2], body: sent.toString() });
    }
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const child = spawn(process.execPath, [...flags, BOOTSTRAP], {
    cwd: root,
    env: {
      PATH: process.env.PATH,
      AWS_LAMBDA_RUNTIME_API: `127.0.0.1:${server.address().port}`,
      AWS_LAMBDA_FUNCTION_NAME: "f",
      AWS_LAMBDA_FUNCTION_VERSION: "$LATEST",
      AWS_LAMBDA_FUNCTION_MEMORY_SIZE: "128",
      LAMBDA_TASK_ROOT: root,
      _HANDLER: handler,
      AWS_REGION: "us-east-1",
      ...variables,
    },
  });
  let printed = "";
  const readers = new Set();
  const print = (piece) => {
    printed += piece;
    readers.forEach((read) => read());
  };
  child.stdout.on("data", print);
  child.stderr.on("data", print);
  // Waits until so many lines are printed.
  const lines = (count) =>
    new Promise((resolve) => {
      const read = () => {
        const found = printed.split("\n").slice(0, -1);
        if (found.length >= count) {
          readers.delete(read);
          resolve(found);
        }
      };
      readers.add(read);
      read();
    });
  const ended = new Promise((resolve) => child.on("close", (code) => resolve(code)));
  t.after(async () => {
    child.kill("SIGKILL");
    await ended;
    server.closeAllConnections();
    server.close();
  });
  const invoke = (event) => {
    const answered = new Promise((resolve) => {
      count += 1;
      waiting.push({ id: `id-${count}`, event, resolve });
    });
    give();
    const gone = ended.then((code) => ({ kind: "ended", body: `${code}: ${printed}` }));
    return Promise.race([answered, gone]);
  };
  return { invoke, ended, initError, lines };
}

module.exports = { start, directory };
