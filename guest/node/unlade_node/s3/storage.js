// The exports of `@aws-sdk/lib-storage`: `Upload`, which sends a body of any length in parts. With
// a client that is the SDK's, it is the SDK's `Upload`.
"use strict";

const { EventEmitter } = require("node:events");
const fs = require("node:fs");
const { Readable } = require("node:stream");

const { EXPORTS, PLACE, SDK } = require("./marks");
const { row } = require("./request");

const PART_BYTES_MIN = 5 * 1024 * 1024;
const PARTS_MAX = 10_000;
const QUEUE = 4;

// The length of a body, or undefined if it is a stream.
function lengthOf(body) {
  if (body === undefined || body === null) return 0;
  if (typeof body === "string") return Buffer.byteLength(body);
  const known = [body.byteLength, body.length, body.size].find((one) => typeof one === "number");
  if (known !== undefined) return known;
  if (typeof body.start === "number" && typeof body.end === "number") return body.end + 1 - body.start;
  return body instanceof fs.ReadStream ? fs.statSync(body.path, { throwIfNoEntry: false })?.size : undefined;
}

async function* pieces(body) {
  for await (const piece of body) {
    yield piece instanceof Uint8Array ? piece : Buffer.from(piece);
  }
}

// The parts of a stream: `{ number, bytes, isLast }`.
async function* streamParts(body, partBytes) {
  let held = [];
  let length = 0;
  let number = 1;
  for await (const piece of pieces(body)) {
    held.push(piece);
    length += piece.byteLength;
    while (length > partBytes) {
      const whole = held.length > 1 ? Buffer.concat(held) : held[0];
      yield { number, bytes: whole.subarray(0, partBytes), isLast: false };
      held = [whole.subarray(partBytes)];
      length = held[0].byteLength;
      number += 1;
    }
  }
  yield { number, bytes: held.length === 1 ? held[0] : Buffer.concat(held), isLast: true };
}

function* arrayParts(bytes, partBytes) {
  let number = 1;
  let begin = 0;
  for (; begin + partBytes < bytes.byteLength; begin += partBytes) {
    yield { number, bytes: bytes.subarray(begin, begin + partBytes), isLast: false };
    number += 1;
  }
  yield { number, bytes: bytes.subarray(begin), isLast: true };
}

function partsOf(body, partBytes) {
  if (body instanceof Uint8Array) return arrayParts(body, partBytes);
  if (typeof body === "string") return arrayParts(Buffer.from(body), partBytes);
  return streamParts(body instanceof Blob ? body.stream() : body, partBytes);
}

// True for bodies that the stub divides.
function isKnown(body) {
  return (
    typeof body === "string" ||
    body instanceof Uint8Array ||
    body instanceof Readable ||
    body instanceof Blob ||
    body instanceof ReadableStream
  );
}

const aborted = () => Object.assign(new Error("Upload aborted."), { name: "AbortError" });

const encoded = (text) =>
  encodeURIComponent(text).replace(/[!'()*]/g, (c) => `%${c.charCodeAt(0).toString(16).toUpperCase()}`);

// The address of an object of one part, as the SDK composes it.
function locationOf({ hostname, port, isPathStyle }, { Bucket, Key }) {
  const key = Key.split("/").map(encoded).join("/");
  const place = port ? `${hostname}:${port}` : hostname;
  return isPathStyle
    ? `http://${place}/${encoded(Bucket)}/${key}`
    : `http://${encoded(Bucket)}.${place}/${key}`;
}

function check({ client, params, partSize, queueSize }) {
  if (!params) {
    throw new Error("InputError: Upload requires params to be passed to upload.");
  }
  if (!client) {
    throw new Error("InputError: Upload requires a AWS client to do uploads with.");
  }
  if (partSize < PART_BYTES_MIN) {
    throw new Error(
      `EntityTooSmall: Your proposed upload part size [${partSize}] is smaller than the minimum ` +
        `allowed size [${PART_BYTES_MIN}] (5MB)`,
    );
  }
  if (queueSize < 1) {
    throw new Error("Queue size: Must have at least one uploading queue.");
  }
}

// Makes the class for a client of the stub; `commands` are the exports of the client's package.
function uploadClass(own) {
  return class Upload extends EventEmitter {
    static MIN_PART_SIZE = PART_BYTES_MIN;
    MAX_PARTS = PARTS_MAX;
    #parts = [];
    #sent = 0;
    #isBegun = false;
    #creating;
    #single;

    constructor(options) {
      super();
      const { client, params } = options;
      if (client && params && !(client[PLACE] && isKnown(params.Body))) {
        const Class = own().Upload;
        return new Class({ ...options, client: client[SDK] ?? client });
      }
      const length = params && (params.ContentLength ?? lengthOf(params.Body));
      this.client = client;
      this.params = params;
      this.totalBytes = length;
      this.queueSize = options.queueSize || QUEUE;
      this.leavePartsOnError = options.leavePartsOnError || false;
      this.tags = options.tags || [];
      this.abortController = options.abortController ?? new AbortController();
      this.partSize =
        options.partSize || Math.max(PART_BYTES_MIN, Math.ceil((length || 0) / PARTS_MAX));
      check(this);
    }

    async abort() {
      this.abortController.abort();
    }

    async done() {
      if (this.#isBegun) {
        throw new Error(
          "@aws-sdk/lib-storage: this instance of Upload has already executed .done(). " +
            "Create a new instance.",
        );
      }
      this.#isBegun = true;
      const { signal } = this.abortController;
      const stopped = new Promise((_, reject) => {
        signal.addEventListener("abort", () => reject(aborted()), { once: true });
      });
      return Promise.race([this.#run(signal), stopped]);
    }

    // One list of parameters serves all operations: each takes its own.
    #send(operation, input) {
      const known = row(operation);
      const isOwn = ([name]) => name in known.input || known.ofSdk.includes(name);
      const own = Object.fromEntries(Object.entries(input).filter(isOwn));
      return this.client.send(new (this.client[EXPORTS][`${operation}Command`])(own));
    }

    async #run(signal) {
      const parts = partsOf(this.params.Body, this.partSize);
      const failures = [];
      const queues = Array.from({ length: this.queueSize }, () =>
        this.#queue(parts, signal).catch((error) => failures.push(error)),
      );
      await Promise.all(queues);
      if (failures.length > 0) {
        await this.#giveUp();
        throw failures[0];
      }
      if (signal.aborted) {
        await this.#giveUp();
        throw aborted();
      }
      const result = this.#single ?? (await this.#complete());
      if (this.tags.length > 0) {
        await this.#send("PutObjectTagging", { ...this.params, Tagging: { TagSet: this.tags } });
      }
      return result;
    }

    async #queue(parts, signal) {
      for await (const { number, bytes, isLast } of parts) {
        if (signal.aborted) {
          return;
        }
        if (number > PARTS_MAX) {
          const { Bucket, Key } = this.params;
          throw new Error(
            `Exceeded ${PARTS_MAX} parts in multipart upload to Bucket: ${Bucket} Key: ${Key}.`,
          );
        }
        if (number === 1 && isLast) {
          await this.#put(bytes);
          return;
        }
        const { UploadId } = await this.#create();
        if (signal.aborted) {
          return;
        }
        await this.#part(UploadId, number, bytes);
      }
    }

    async #put(bytes) {
      const { isPathStyle, ...place } = this.client[PLACE];
      const put = await this.#send("PutObject", { ...this.params, Body: bytes });
      const { Bucket, Key } = this.params;
      const Location = locationOf({ ...place, isPathStyle }, this.params);
      this.#single = { ...put, Bucket, Key, Location };
      this.#sent = bytes.byteLength;
      this.totalBytes = bytes.byteLength;
      this.#progress(1);
    }

    #create() {
      this.#creating ??= this.#send("CreateMultipartUpload", {
        ...this.params,
        Body: undefined,
        ChecksumAlgorithm: this.params.ChecksumAlgorithm || "CRC32",
      });
      return this.#creating;
    }

    async #part(UploadId, PartNumber, Body) {
      const { Bucket, Key } = this.params;
      const input = { ...this.params, ContentLength: undefined, UploadId, Body, PartNumber };
      const done = await this.#send("UploadPart", input);
      if (this.abortController.signal.aborted) {
        return;
      }
      if (!done.ETag) {
        throw new Error(
          `Part ${PartNumber} is missing ETag in UploadPart response. Missing Bucket CORS ` +
            "configuration for ETag header?",
        );
      }
      const sums = Object.entries(done).filter(([name]) => name.startsWith("Checksum"));
      this.#parts.push({ PartNumber, ETag: done.ETag, ...Object.fromEntries(sums) });
      this.#sent += Body.byteLength;
      this.#progress(PartNumber, Bucket, Key);
    }

    #progress(part) {
      const { Bucket, Key } = this.params;
      const progress = { loaded: this.#sent, total: this.totalBytes, part, Key, Bucket };
      this.emit("httpUploadProgress", progress);
    }

    async #complete() {
      const Parts = this.#parts.sort((one, other) => one.PartNumber - other.PartNumber);
      const due = this.totalBytes === undefined ? Parts.length : Math.ceil(this.totalBytes / this.partSize);
      if (Parts.length !== due) {
        await this.#giveUp();
        throw new Error(
          `Expected ${due} part(s) but uploaded ${Parts.length} part(s): the length of the body is ` +
            `${this.totalBytes}. If this is not correct, set ContentLength.`,
        );
      }
      const { UploadId } = await this.#creating;
      const input = { ...this.params, Body: undefined, UploadId, MultipartUpload: { Parts } };
      try {
        const result = await this.#send("CompleteMultipartUpload", input);
        if (result.Location?.includes("%2F")) {
          result.Location = result.Location.replace(/%2F/g, "/");
        }
        return result;
      } catch (error) {
        await this.#giveUp().catch((cause) => {
          error.cause ??= cause;
        });
        throw error;
      }
    }

    async #giveUp() {
      const UploadId = await this.#creating?.then((made) => made.UploadId, () => undefined);
      if (UploadId && !this.leavePartsOnError) {
        const { Bucket, Key } = this.params;
        await this.#send("AbortMultipartUpload", { Bucket, Key, UploadId });
      }
    }
  };
}

// The exports, for the package that `own` loads.
function create(own) {
  return new Proxy(
    { Upload: uploadClass(own) },
    { get: (made, name) => made[name] ?? (typeof name === "string" && name !== "then" ? own()[name] : undefined) },
  );
}

module.exports = { create };
