// The methods that the SDK adds to the stream of an object's body.
"use strict";

const { Readable } = require("node:stream");

const TRANSFORMED = "The stream has already been transformed.";

// All bytes of a stream.
function collect(stream) {
  return new Promise((resolve, reject) => {
    const pieces = [];
    stream.on("data", (piece) => pieces.push(piece));
    stream.on("error", reject);
    stream.on("aborted", () => reject(Object.assign(new Error("aborted"), { code: "ECONNRESET" })));
    stream.on("end", () => resolve(Buffer.concat(pieces)));
  });
}

// Adds the methods to a stream.
function extend(stream) {
  let isTransformed = false;
  const once = () => {
    if (isTransformed) {
      throw new Error(TRANSFORMED);
    }
    isTransformed = true;
  };
  const transformToByteArray = async () => {
    once();
    return new Uint8Array(await collect(stream));
  };
  return Object.assign(stream, {
    transformToByteArray,
    async transformToString(encoding) {
      const bytes = await transformToByteArray();
      if (encoding === undefined || Buffer.isEncoding(encoding)) {
        return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString(encoding);
      }
      return new TextDecoder(encoding).decode(bytes);
    },
    transformToWebStream() {
      if (isTransformed) {
        throw new Error(TRANSFORMED);
      }
      if (stream.readableFlowing !== null) {
        throw new Error("The stream has been consumed by other callbacks.");
      }
      isTransformed = true;
      return Readable.toWeb(stream);
    },
  });
}

module.exports = { collect, extend };
