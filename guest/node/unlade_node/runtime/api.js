// Lambda's Runtime API, version 2018-06-01: one connection, kept.
"use strict";

const http = require("node:http");

const BASE = "/2018-06-01/runtime/";

// Sends a request and resolves with status, header fields and the body as a Buffer. Rejects if the
// connection fails.
function send(agent, host, method, path, headers, body) {
  return new Promise((resolve, reject) => {
    const options = { agent, hostname: host[0], port: host[1], method, path, headers };
    const request = http.request(options, (response) => {
      const pieces = [];
      response.on("data", (piece) => pieces.push(piece));
      response.on("error", reject);
      response.on("end", () => {
        resolve({ status: response.statusCode, headers: response.headers, body: Buffer.concat(pieces) });
      });
    });
    request.on("error", reject);
    request.end(body);
  });
}

// The client of an address `HOST:PORT`.
exports.client = function client(address) {
  const host = address.split(":");
  const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
  const post = (path, body, more) => {
    const bytes = Buffer.from(body);
    const headers = { "Content-Type": "application/json", "Content-Length": bytes.length, ...more };
    return send(agent, host, "POST", BASE + path, headers, bytes);
  };
  const fail = (path, error) => {
    return post(path, JSON.stringify(error), {
      "Lambda-Runtime-Function-Error-Type": encodeURI(error.errorType),
    });
  };
  return {
    // Waits for the next event: `{ id, headers, body }`.
    async next() {
      const answer = await send(agent, host, "GET", `${BASE}invocation/next`, {}, undefined);
      if (answer.status !== 200) {
        throw new Error(`the Runtime API answers ${answer.status}: ${answer.body}`);
      }
      const id = answer.headers["lambda-runtime-aws-request-id"];
      return { id, headers: answer.headers, body: answer.body };
    },
    // Sends a result, as text or bytes.
    respond: (id, body) => post(`invocation/${id}/response`, body),
    // Sends the error of an invocation, in Lambda's form.
    fail: (id, error) => fail(`invocation/${id}/error`, error),
    // Sends the error of the start.
    initError: (error) => fail("init/error", error),
  };
};
