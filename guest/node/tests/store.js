// The built-in store, behind a server that drops signatures, as the endpoint in a sandbox does, and
// that fails where a test says it.
"use strict";

const { spawn } = require("node:child_process");
const fs = require("node:fs");
const http = require("node:http");
const os = require("node:os");
const path = require("node:path");

const ROOT = path.join(__dirname, "../../..");

// The program, or undefined.
function unlade() {
  const places = [process.env.UNLADE_BIN, `${ROOT}/target/release/unlade`, `${ROOT}/target/debug/unlade`];
  return places.find((place) => place && fs.existsSync(place));
}

// Starts both. `fail(request)` may return `{ status, body, headers, isCut }` or "reset" in the place of
// the store's answer. Returns `{ url, requests, buckets(names) }`.
async function start(t, fail = () => undefined) {
  const directory = fs.mkdtempSync(path.join(os.tmpdir(), "unlade-node-store-"));
  const child = spawn(unlade(), ["fn", "store", "--dir", directory, "--listen", "127.0.0.1:0"], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  const address = await new Promise((resolve) => {
    child.stdout.once("data", (text) => resolve(new URL(String(text).trim())));
  });
  const requests = [];
  const server = http.createServer((request, response) => {
    const { method, url, headers } = request;
    requests.push({ method, url, headers: { ...headers } });
    const failed = fail(request, requests.length);
    if (failed === "reset") {
      request.socket.destroy();
      return;
    }
    if (failed) {
      request.resume();
      request.on("end", () => {
        response.writeHead(failed.status, failed.headers);
        if (failed.isCut) {
          response.write(failed.body, () => request.socket.destroy());
        } else {
          response.end(failed.body);
        }
      });
      return;
    }
    delete headers.authorization;
    const onward = http.request({ hostname: address.hostname, port: address.port, method, path: url, headers });
    onward.on("response", (answer) => {
      response.writeHead(answer.statusCode, answer.headers);
      answer.pipe(response);
    });
    onward.on("error", () => response.destroy());
    request.pipe(onward);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.after(async () => {
    server.closeAllConnections();
    server.close();
    child.kill();
    await new Promise((resolve) => child.once("close", resolve));
    fs.rmSync(directory, { recursive: true, force: true });
  });
  const url = `http://127.0.0.1:${server.address().port}`;
  const buckets = async (names) => {
    for (const name of names) {
      await new Promise((resolve, reject) => {
        const made = http.request(`${url}/${name}`, { method: "PUT" }, (answer) => answer.resume().on("end", resolve));
        made.on("error", reject).end();
      });
    }
  };
  return { url, requests, buckets };
}

// The variables of a sandbox with this endpoint.
function variables(url) {
  return {
    PATH: process.env.PATH,
    AWS_ENDPOINT_URL: url,
    AWS_ENDPOINT_URL_S3: url,
    AWS_ACCESS_KEY_ID: "UNLADE",
    AWS_SECRET_ACCESS_KEY: "the-host-signs",
    AWS_EC2_METADATA_DISABLED: "true",
    AWS_REGION: "us-east-1",
    NODE_NO_WARNINGS: "1",
  };
}

module.exports = { start, unlade, variables };
