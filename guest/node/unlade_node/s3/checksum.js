// CRC32, which the SDK adds to bodies and compares on the way back.
"use strict";

const { Transform } = require("node:stream");
const zlib = require("node:zlib");

function base64(value) {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32BE(value >>> 0);
  return bytes.toString("base64");
}

// The checksum of bytes, in base64.
function checksumOf(bytes) {
  return base64(bytes ? zlib.crc32(bytes) : 0);
}

// A stream of chunks in the coding `aws-chunked`, with the checksum behind them.
function chunked(stream) {
  let sum = 0;
  const coder = new Transform({
    transform(piece, encoding, done) {
      if (piece.length > 0) {
        sum = zlib.crc32(piece, sum);
        this.push(`${piece.length.toString(16)}\r\n`);
        this.push(piece);
        this.push("\r\n");
      }
      done();
    },
    flush(done) {
      this.push(`0\r\nx-amz-checksum-crc32:${base64(sum)}\r\n\r\n`);
      done();
    },
  });
  stream.on("error", (error) => coder.destroy(error));
  return stream.pipe(coder);
}

// A stream with the bytes of another one; it fails at the end if they do not have the checksum.
class ChecksumStream extends Transform {
  constructor(source, due) {
    let sum = 0;
    super({
      transform(piece, encoding, done) {
        sum = zlib.crc32(piece, sum);
        done(null, piece);
      },
      flush(done) {
        const found = base64(sum);
        const why =
          `Checksum mismatch: expected "${due}" but received "${found}"` +
          ' in response header "x-amz-checksum-crc32".';
        done(found === due ? null : new Error(why));
      },
    });
    source.on("error", (error) => this.destroy(error));
    source.on("aborted", () => this.destroy(source.errored ?? new Error("aborted")));
    this.on("close", () => source.destroyed || source.complete || source.destroy());
    source.pipe(this);
  }
}

// The body of a response, compared with its checksum if it has one of the whole.
function checked(response) {
  const { "x-amz-checksum-crc32": due, "x-amz-checksum-type": kind } = response.headers;
  const isOfWhole = due !== undefined && !due.includes("-") && kind !== "COMPOSITE";
  return isOfWhole && response.statusCode === 200 ? new ChecksumStream(response, due) : response;
}

module.exports = { checksumOf, chunked, checked };
