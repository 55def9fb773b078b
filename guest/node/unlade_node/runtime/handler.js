// The function's handler: its file, by Lambda's order of extensions, and the function in it.
"use strict";

const fs = require("node:fs");
const path = require("node:path");
const { RuntimeError } = require("./errors");

const ENDINGS = ["", ".js", ".mjs", ".cjs"];

// Splits `DIRECTORY/FILE.FUNCTION`; the function may be a path of members.
function split(handler) {
  const folder = path.dirname(handler);
  const last = path.basename(handler);
  const dot = last.indexOf(".");
  if (dot < 1 || dot === last.length - 1 || handler.includes("..")) {
    throw new RuntimeError("Runtime.MalformedHandlerName", `Bad handler: ${handler}`);
  }
  return { file: path.join(folder, last.slice(0, dot)), members: last.slice(dot + 1).split(".") };
}

function find(root, file) {
  for (const ending of ENDINGS) {
    const found = path.resolve(root, file + ending);
    if (fs.statSync(found, { throwIfNoEntry: false })?.isFile()) {
      return found;
    }
  }
  const where = path.resolve(root, file);
  const why = `Cannot find module '${where}': there is no ${file}.js, ${file}.mjs or ${file}.cjs`;
  throw new RuntimeError("Runtime.ImportModuleError", why);
}

// True if Node.js takes the file as an ECMAScript module.
function isModule(root, file) {
  const ending = path.extname(file);
  if (ending === ".mjs" || ending === ".cjs") {
    return ending === ".mjs";
  }
  for (let folder = path.dirname(file); ; folder = path.dirname(folder)) {
    const named = path.join(folder, "package.json");
    if (fs.existsSync(named)) {
      return JSON.parse(fs.readFileSync(named, "utf8")).type === "module";
    }
    if (folder === path.resolve(root) || folder === path.dirname(folder)) {
      return false;
    }
  }
}

// Names a failed import as Lambda does; other errors of the function stay as they are.
function named(error) {
  if (error instanceof SyntaxError) {
    return new RuntimeError("Runtime.UserCodeSyntaxError", `${error}`, error);
  }
  const isMissing = error?.code === "MODULE_NOT_FOUND" || error?.code === "ERR_MODULE_NOT_FOUND";
  if (!isMissing) {
    return error;
  }
  const isSdk = /@(aws-sdk|smithy)\//.test(error.message);
  const hint = isSdk ? "; this runtime brings no SDK: add it to the function's package" : "";
  return new RuntimeError("Runtime.ImportModuleError", `${error}${hint}`, error);
}

// Loads the handler; rejects with an error of Lambda's types.
async function load(root, handler) {
  const { file, members } = split(handler);
  const found = find(root, file);
  let content;
  try {
    if (isModule(root, found)) {
      content = await import(require("node:url").pathToFileURL(found).href);
    } else {
      content = require(found);
    }
  } catch (error) {
    throw named(error);
  }
  const chosen = members.reduce((inner, name) => inner?.[name], content);
  if (typeof chosen !== "function") {
    const what = chosen === undefined ? "undefined or not exported" : "not a function";
    throw new RuntimeError("Runtime.HandlerNotFound", `${handler} is ${what}`);
  }
  return chosen;
}

module.exports = { load, split };
