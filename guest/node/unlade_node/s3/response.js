// An HTTP response as a result, or as an exception.
"use strict";

const { collect, extend } = require("./body");
const { checked } = require("./checksum");
const { S3ServiceException } = require("./errors");
const { row } = require("./request");
const { fromText } = require("./values");
const xml = require("./xml");

// The status that an error in an answer of 200 counts as.
const LATE_ERROR = 503;

function metadata(response) {
  const { headers } = response;
  return {
    httpStatusCode: response.statusCode,
    requestId: headers["x-amzn-requestid"] ?? headers["x-amzn-request-id"] ?? headers["x-amz-request-id"],
    extendedRequestId: headers["x-amz-id-2"],
    cfId: headers["x-amz-cf-id"],
  };
}

function fields(known, headers, out) {
  for (const [member, { at, name, type }] of Object.entries(known.output)) {
    if (at === "header" && headers[name] !== undefined) {
      const value = Array.isArray(type)
        ? headers[name].split(",").map((one) => one.trim())
        : fromText(headers[name], type);
      if (value !== undefined) {
        out[member] = value;
      }
    } else if (at === "prefix") {
      const found = Object.entries(headers).filter(([field]) => field.startsWith(name));
      out[member] = Object.fromEntries(found.map(([field, text]) => [field.slice(name.length), text]));
    }
  }
}

function documents(known, text, out) {
  const members = Object.entries(known.output);
  const payload = members.find(([, { at }]) => at === "payload");
  const inside = members.filter(([, { at }]) => at === "document");
  if (text === "" || (!payload && inside.length === 0)) {
    return;
  }
  const root = xml.parse(text);
  if (payload) {
    const [member, { type }] = payload;
    out[member] = xml.valueOf([root], type);
    return;
  }
  const shape = Object.fromEntries(inside);
  Object.assign(out, xml.structure(root, shape));
}

// `Expires` is a date if it is one, and its text as it is.
function expires(headers) {
  const { expires: text } = headers;
  if (text === undefined) {
    return headers;
  }
  const { expires: dropped, ...others } = headers;
  const isDate = !Number.isNaN(Date.parse(text));
  return { ...others, expiresstring: text, ...(isDate ? { expires: text } : {}) };
}

// The elements of an error. Throws, with the SDK's message, if the text is no document.
function parsed(text, response) {
  try {
    return text === "" ? {} : xml.texts(xml.parse(text));
  } catch {
    const error = new Error(
      "@aws-sdk XML parse error: unexpected content.\n  Deserialization error: to see the raw response, " +
        "inspect the hidden field {error}.$response on this object.",
    );
    error.$metadata = metadata(response);
    throw withResponse(error, response, response.statusCode);
  }
}

// Adds the response, which is not enumerated.
function withResponse(error, { headers, statusMessage }, statusCode) {
  const value = { statusCode, headers, reason: statusMessage };
  const hidden = { value, enumerable: false, writable: true, configurable: true };
  return Object.defineProperty(error, "$response", hidden);
}

// The exception of a response; `errorOf` gives the class of a name, if it has one.
function exception(response, status, text, errorOf) {
  const found = parsed(text, response);
  const name = found.Code ?? (status === 404 ? "NotFound" : "Unknown");
  const message = found.message || found.Message || "UnknownError";
  const about = metadata(response);
  about.httpStatusCode = status;
  about.requestId ??= found.RequestId;
  const options = { name, message, $fault: status < 500 ? "client" : "server", $metadata: about };
  const { Message: dropped, ...others } = found;
  const Class = errorOf(name);
  const error = Class ? new Class({ ...options, ...others }) : new S3ServiceException(options);
  for (const [key, value] of Object.entries(others)) {
    if (error[key] === undefined || error[key] === "") {
      error[key] = value;
    }
  }
  const shown = { value: message, enumerable: true, writable: true, configurable: true };
  Object.defineProperty(error, "message", shown);
  return withResponse(error, response, status);
}

// The result of a response. Rejects with the service's exception.
async function decode(operation, response, errorOf) {
  const known = row(operation);
  const isFailed = response.statusCode >= 300;
  const streamed = Object.entries(known.output).find(([, { type }]) => type === "stream");
  if (streamed && !isFailed) {
    const out = { $metadata: metadata(response) };
    fields(known, expires(response.headers), out);
    out[streamed[0]] = extend(checked(response));
    return out;
  }
  const text = (await collect(response)).toString();
  if (isFailed) {
    throw exception(response, response.statusCode, text, errorOf);
  }
  if (text.trimEnd().endsWith("</Error>")) {
    throw exception(response, LATE_ERROR, text, errorOf);
  }
  const out = { $metadata: metadata(response) };
  fields(known, expires(response.headers), out);
  documents(known, text, out);
  return out;
}

module.exports = { decode };
