// Values of parameters and results as text, by the types of the tables.
"use strict";

// The value of a text.
function fromText(text, type) {
  switch (type) {
    case "number":
      return text === "" ? undefined : Number(text);
    case "boolean":
      return text === "" ? undefined : text === "true";
    case "date":
    case "http-date":
      return text === "" ? undefined : new Date(text);
    case "epoch":
      return text === "" ? undefined : new Date(Number(text) * 1000);
    default:
      return text;
  }
}

// The text of a value.
function toText(value, type) {
  switch (type) {
    case "date":
      return value instanceof Date ? value.toISOString().replace(".000Z", "Z") : String(value);
    case "http-date":
      return value instanceof Date ? value.toUTCString() : String(value);
    case "epoch":
      return value instanceof Date ? String(value.getTime() / 1000) : String(value);
    default:
      return String(value);
  }
}

module.exports = { fromText, toText };
