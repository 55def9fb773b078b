// A call's parameters as an HTTP request, by the tables. What the tables do not have, or has a type
// that they do not know, is `undefined`: the call is the SDK's.
"use strict";

const fs = require("node:fs");
const { Readable } = require("node:stream");
const names = require("./names");
const { checksumOf } = require("./checksum");
const { toText } = require("./values");
const xml = require("./xml");

const XML = "application/xml";
const BINARY = "application/octet-stream";

// Access points, and directory buckets and others with protocols of their own.
const OTHER_BUCKETS = /^arn:|--[a-z]+-s3$/;

const rows = new Map();

// The table's row of an operation; undefined if the stub does not make it.
function row(operation) {
  if (!rows.has(operation)) {
    rows.set(operation, names.stub.includes(operation) ? require(`./operations/${operation}`) : undefined);
  }
  return rows.get(operation);
}

// Percent-encoding of all but unreserved characters.
function percent(text) {
  return encodeURIComponent(text).replace(/[!'()*]/g, (char) => {
    return `%${char.charCodeAt(0).toString(16).toUpperCase()}`;
  });
}

function isOfType(value, type) {
  switch (type) {
    case "string":
      return typeof value === "string";
    case "number":
      return Number.isSafeInteger(value) && value >= 0;
    case "boolean":
      return typeof value === "boolean";
    case "date":
    case "http-date":
      return value instanceof Date && !Number.isNaN(value.getTime());
    case "map": {
      const isPlain = typeof value === "object" && !Array.isArray(value);
      return isPlain && Object.values(value).every((one) => typeof one === "string");
    }
    case "stream":
      return true;
    default:
      return isOfList(value, type);
  }
}

function isOfList(value, type) {
  if (!Array.isArray(type)) {
    return false;
  }
  const [kind, inner] = type;
  if (kind === "list") {
    return Array.isArray(value) && value.every((one) => one != null && isOfType(one, inner));
  }
  const shape = require("./shapes")[inner]();
  const isKnown = ([name, one]) => one == null || (name in shape && isOfType(one, shape[name].type));
  return typeof value === "object" && !Array.isArray(value) && Object.entries(value).every(isKnown);
}

// True if the stub makes the operation with these parameters.
function isKnown(operation, input) {
  const known = row(operation);
  return (
    known !== undefined &&
    typeof input === "object" &&
    Object.entries(input).every(([name, value]) => {
      if (value === undefined || value === null) {
        return true;
      }
      const member = known.input[name];
      const isList = Array.isArray(member?.type) && member.at !== "payload";
      return member !== undefined && !isList && isOfType(value, member.type);
    }) &&
    !OTHER_BUCKETS.test(input.Bucket ?? "") &&
    body(input) !== undefined
  );
}

// The body to send: `{ bytes }`, `{ stream, length }`, `{}` for none; undefined for what only the
// SDK can send.
function body(input) {
  const { Body: given, ContentLength: length } = input;
  if (given === undefined || given === null) {
    return length === undefined || length === null ? {} : undefined;
  }
  if (typeof given === "string" || given instanceof Uint8Array) {
    const bytes = typeof given === "string" ? Buffer.from(given) : given;
    return (length ?? bytes.byteLength) === bytes.byteLength ? { bytes } : undefined;
  }
  if (!(given instanceof Readable) || given.readableEncoding) {
    return undefined;
  }
  const found = length ?? lengthOf(given);
  return found === undefined ? undefined : { stream: given, length: found };
}

// The length of a file's stream.
function lengthOf(stream) {
  const { start, end, path } = stream;
  if (!(stream instanceof fs.ReadStream) || typeof path !== "string") {
    return undefined;
  }
  if (typeof start === "number" && typeof end === "number" && end !== Infinity) {
    return end + 1 - start;
  }
  const isWhole = start === undefined && (end === undefined || end === Infinity);
  return isWhole ? fs.lstatSync(path, { throwIfNoEntry: false })?.size : undefined;
}

function label(input, name) {
  const value = input[name];
  if (value === undefined || value === null || (value === "" && name !== "Key")) {
    throw new Error(`No value provided for input HTTP label: ${name}.`);
  }
  return value;
}

// Throws as the SDK does for a bucket's name that cannot be one.
function checkBucket(bucket) {
  if (bucket?.includes("/")) {
    const error = new Error(`Bucket name shouldn't contain '/', received '${bucket}'`);
    error.name = "InvalidBucketName";
    throw error;
  }
}

function target(known, input) {
  const key = known.hasKey ? label(input, "Key").split("/").map(percent).join("/") : "";
  const bucket = percent(label(input, "Bucket"));
  const query = { ...known.query };
  for (const [name, { at, name: key, type }] of Object.entries(known.input)) {
    const value = input[name];
    if (at === "query" && value !== undefined && value !== null) {
      query[key] = toText(value, type);
    }
  }
  const names = Object.keys(query).sort();
  const pairs = names.map((name) => `${percent(name)}=${percent(query[name])}`);
  return `/${bucket}/${key}${pairs.length > 0 ? `?${pairs.join("&")}` : ""}`;
}

function fields(known, input) {
  const headers = {};
  for (const [name, { at, name: field, type }] of Object.entries(known.input)) {
    const value = input[name];
    if (value === undefined || value === null) {
      continue;
    }
    if (at === "header") {
      headers[field] = toText(value, type);
    } else if (at === "prefix") {
      for (const [key, text] of Object.entries(value)) {
        headers[field + key.toLowerCase()] = text;
      }
    }
  }
  return headers;
}

// The payload: a document, or the body.
function payload(known, input, headers) {
  const found = Object.entries(known.input).find(([, member]) => member.at === "payload");
  if (!found) {
    return {};
  }
  const [name, { name: root, type }] = found;
  if (type === "stream") {
    headers["content-type"] ??= BINARY;
    return body(input);
  }
  headers["content-type"] ??= XML;
  const value = input[name];
  return value == null ? {} : { bytes: Buffer.from(xml.document(root, value, type)) };
}

// The request of a call that `isKnown`: `{ method, path, headers, bytes, stream, length }`. Throws
// what the SDK throws for invalid parameters.
function encode(operation, input) {
  const known = row(operation);
  checkBucket(input.Bucket);
  const path = target(known, input);
  const headers = fields(known, input);
  const { bytes, stream, length } = payload(known, input, headers);
  if (known.method === "GET" && known.hasChecksum) {
    headers["x-amz-checksum-mode"] = "ENABLED";
  } else if (known.hasChecksum) {
    headers["x-amz-sdk-checksum-algorithm"] = "CRC32";
    if (!stream) {
      headers["x-amz-checksum-crc32"] = checksumOf(bytes);
    }
  }
  if (stream) {
    delete headers["content-length"];
    const coding = headers["content-encoding"];
    headers["content-encoding"] = coding ? `${coding},aws-chunked` : "aws-chunked";
    headers["transfer-encoding"] = "chunked";
    headers["x-amz-decoded-content-length"] = String(length);
    headers["x-amz-content-sha256"] = "STREAMING-UNSIGNED-PAYLOAD-TRAILER";
    headers["x-amz-trailer"] = "x-amz-checksum-crc32";
  } else if (known.method !== "GET" && known.method !== "HEAD" && (bytes || known.method !== "DELETE")) {
    headers["content-length"] = String(bytes?.byteLength ?? 0);
  }
  return { method: known.method, path, headers, bytes, stream, length };
}

module.exports = { row, isKnown, encode };
