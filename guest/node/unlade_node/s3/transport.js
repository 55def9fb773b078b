// Requests to the host's endpoint inside the sandbox: plain HTTP, kept connections. The endpoint
// drops signatures: the placeholder tells it service and region.
"use strict";

const http = require("node:http");
const { chunked } = require("./checksum");

const CONNECTIONS_MAX = 50;

const agent = new http.Agent({ keepAlive: true, maxSockets: CONNECTIONS_MAX });

// The address in `AWS_ENDPOINT_URL_S3` or `AWS_ENDPOINT_URL`, if it is the sandbox's: plain HTTP on
// the loopback, without a path.
function endpoint() {
  const text = process.env.AWS_ENDPOINT_URL_S3 || process.env.AWS_ENDPOINT_URL;
  const found = /^http:\/\/(127\.0\.0\.1)(?::(\d+))?\/?$/.exec(text ?? "");
  return found ? { hostname: found[1], port: found[2] ? Number(found[2]) : undefined } : undefined;
}

function placeholder(region) {
  return (
    `AWS4-HMAC-SHA256 Credential=UNLADE/20260101/${region}/s3/aws4_request, ` +
    "SignedHeaders=host, Signature=00"
  );
}

// The error of a call that its caller has given up.
function aborted(signal) {
  const { reason } = signal;
  const isError = reason instanceof Error;
  const error = new Error(isError || !reason ? "Request aborted" : String(reason));
  error.name = "AbortError";
  if (isError) {
    error.cause = reason;
  }
  return error;
}

// Sends one attempt; resolves with the response when its head is there.
function attempt(place, region, request, signal) {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) {
      reject(aborted(signal));
      return;
    }
    const headers = { ...request.headers, authorization: placeholder(region) };
    const { method, path } = request;
    const sent = http.request({ ...place, agent, method, path, headers });
    const abort = () => {
      sent.destroy();
      reject(aborted(signal));
    };
    signal?.addEventListener("abort", abort, { once: true });
    const settled = (settle) => (value) => {
      signal?.removeEventListener("abort", abort);
      settle(value);
    };
    sent.on("response", settled(resolve));
    sent.on("error", settled(reject));
    if (request.stream) {
      const coded = chunked(request.stream);
      coded.on("error", (error) => {
        sent.destroy();
        settled(reject)(error);
      });
      coded.pipe(sent);
    } else {
      sent.end(request.bytes);
    }
  });
}

// Ends the connections that no call uses.
function destroy() {
  agent.destroy();
}

module.exports = { attempt, aborted, destroy, endpoint };
