// `awslambda.streamifyResponse`: the handler writes its response into a stream. The host holds a
// response until its end, so the stream is collected here.
"use strict";

const IS_STREAMING = Symbol.for("unlade.streaming");
// Lambda's limit of a response.
const RESPONSE_BYTES_MAX = 6 * 1024 * 1024;
// Eight zero bytes separate the prelude of an HTTP response from its body.
const SEPARATOR_BYTES = 8;

// A stream for a response, and the promise of its bytes.
function collect() {
  const { Writable } = require("node:stream");
  const pieces = [];
  let length = 0;
  let contentType = "application/octet-stream";
  const stream = new Writable({
    write(piece, encoding, done) {
      length += piece.length;
      // One byte more than allowed: the host then answers as for any response that is too large.
      if (length - piece.length <= RESPONSE_BYTES_MAX) {
        pieces.push(piece);
      }
      done();
    },
  });
  stream.setContentType = (type) => {
    contentType = type;
    return contentType;
  };
  const ended = new Promise((resolve, reject) => {
    stream.on("finish", () => resolve(Buffer.concat(pieces)));
    stream.on("error", reject);
    stream.on("close", () => reject(new Error("the response stream was destroyed")));
  });
  ended.catch(() => {});
  return { stream, ended };
}

// Makes the global `awslambda`.
exports.install = function install() {
  const from = (stream, prelude) => {
    stream.setContentType("application/vnd.awslambda.http-integration-response");
    stream.write(JSON.stringify(prelude));
    stream.write(Buffer.alloc(SEPARATOR_BYTES));
    return stream;
  };
  globalThis.awslambda = {
    streamifyResponse(handler) {
      handler[IS_STREAMING] = true;
      return handler;
    },
    HttpResponseStream: { from },
  };
};

exports.isStreaming = (handler) => handler[IS_STREAMING] === true;
exports.collect = collect;
