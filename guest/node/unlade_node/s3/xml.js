// Documents of S3: a reader that makes trees of plain objects, and a writer by the tables.
"use strict";

const shapes = require("./shapes");
const { fromText, toText } = require("./values");

const NAMED = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'" };
const DEPTH_MAX = 64;

function unescape(text) {
  return text.includes("&")
    ? text.replace(/&(?:#x([0-9a-fA-F]+)|#(\d+)|(\w+));/g, (all, hex, decimal, name) => {
        if (name) {
          return NAMED[name] ?? all;
        }
        const code = hex ? parseInt(hex, 16) : Number(decimal);
        return code > 0x10ffff ? "\u{FFFD}" : String.fromCodePoint(code);
      })
    : text;
}

function escape(text) {
  const names = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&apos;" };
  return text.replace(/[&<>"'\r\n\u0085\u2028]/g, (char) => {
    return names[char] ?? `&#x${char.codePointAt(0).toString(16).toUpperCase()};`;
  });
}

// Reads a document: `{ name, text, children: [{ name, … }] }`. Throws if it is malformed.
function parse(document) {
  const root = { name: "", text: "", children: [] };
  const open = [root];
  const token = /<!\[CDATA\[([\s\S]*?)\]\]>|<!--[\s\S]*?-->|<[?!][^>]*>|<\/([^\s>]+)\s*>|<([^\s/>]+)[^>]*?(\/?)>|([^<]+)/y;
  let at = 0;
  while (at < document.length) {
    token.lastIndex = at;
    const found = token.exec(document);
    if (!found) {
      throw new SyntaxError(`the document is malformed at ${at}`);
    }
    at = token.lastIndex;
    const [, data, closed, opened, isEmpty, text] = found;
    const last = open[open.length - 1];
    if (data !== undefined) {
      last.text += data;
    } else if (text !== undefined) {
      last.text += unescape(text);
    } else if (closed !== undefined) {
      if (open.length < 2 || last.name !== closed) {
        throw new SyntaxError(`the document is malformed: </${closed}>`);
      }
      open.pop();
    } else if (opened !== undefined) {
      const element = { name: opened, text: "", children: [] };
      last.children.push(element);
      if (!isEmpty) {
        open.push(element);
      }
      if (open.length > DEPTH_MAX) {
        throw new SyntaxError("the document is too deep");
      }
    }
  }
  if (open.length !== 1 || root.children.length === 0) {
    throw new SyntaxError("the document is incomplete");
  }
  return root.children[0];
}

// The value of elements with one name, by a type of the tables; undefined if there is none.
function valueOf(elements, type) {
  if (!Array.isArray(type)) {
    return elements.length > 0 ? fromText(elements[0].text, type) : undefined;
  }
  const [kind, inner, member] = type;
  if (kind === "shape") {
    return elements.length > 0 ? structure(elements[0], shapes[inner]()) : undefined;
  }
  if (elements.length === 0) {
    return undefined;
  }
  const items = member === null ? elements : elements[0].children.filter((one) => one.name === member);
  return items.map((item) => valueOf([item], inner));
}

function structure(element, shape) {
  const out = {};
  for (const [member, { name, type }] of Object.entries(shape)) {
    const local = (child) => child.name.slice(child.name.indexOf(":") + 1) === name;
    const value = valueOf(element.children.filter(local), type);
    if (value !== undefined) {
      out[member] = value;
    }
  }
  return out;
}

function written(name, value, type) {
  if (value === undefined || value === null) {
    return "";
  }
  if (!Array.isArray(type)) {
    return `<${name}>${escape(toText(value, type))}</${name}>`;
  }
  const [kind, inner, member] = type;
  if (kind === "shape") {
    return `<${name}>${members(value, shapes[inner]())}</${name}>`;
  }
  const items = value.map((item) => written(member ?? name, item, inner)).join("");
  return member === null ? items : `<${name}>${items}</${name}>`;
}

function members(value, shape) {
  return Object.entries(shape)
    .map(([member, { name, type }]) => written(name, value[member], type))
    .join("");
}

const DECLARATION = '<?xml version="1.0" encoding="UTF-8"?>';
const NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/";

// A document with this root.
function document(root, value, [, shape]) {
  return `${DECLARATION}<${root} xmlns="${NAMESPACE}">${members(value, shapes[shape]())}</${root}>`;
}

// The elements of an error's document as an object of texts.
function texts(element) {
  const out = {};
  for (const child of element.children) {
    out[child.name] = child.children.length > 0 ? texts(child) : child.text;
  }
  return out;
}

module.exports = { parse, valueOf, structure, document, texts };
