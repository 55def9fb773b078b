// Puts the stub in the place of `@aws-sdk/client-s3` and `@aws-sdk/lib-storage`, for `require` and
// for `import`: Node.js loads both packages, which are CommonJS, through `Module._load`. Names that
// `import` sees are those of the function's own package, since Node.js reads them from its file.
"use strict";

const fs = require("node:fs");
const Module = require("node:module");
const path = require("node:path");

const PACKAGES = /[/\\](@aws-sdk[/\\](client-s3|lib-storage))[/\\]dist-cjs[/\\]index\.js$/;
const NAMES = /^@aws-sdk\/(client-s3|lib-storage)$/;
// The packages for functions that bring no SDK: names without code.
const ABSENT = path.join(__dirname, "node_modules");
// The SDK's own modules get the SDK.
const INSIDE = /[/\\]@aws-sdk[/\\](client-s3|lib-storage)[/\\]/;

// The file of a request, if it is one of the two packages; otherwise undefined.
function target(request, parent, resolve) {
  if (PACKAGES.test(request)) {
    return path.isAbsolute(request) ? request : undefined;
  }
  if (!NAMES.test(request)) {
    return undefined;
  }
  try {
    return resolve(request, parent);
  } catch (error) {
    if (error.code !== "MODULE_NOT_FOUND") {
      throw error;
    }
    return path.join(ABSENT, request, "dist-cjs/index.js");
  }
}

// The stub of a package's file. `load` loads the file itself, which is the function's own SDK.
function stub(file, kind, load) {
  const own = () => {
    if (file.startsWith(ABSENT)) {
      const error = new Error(
        `this call needs AWS's SDK, which the function's package does not have: add @aws-sdk/${kind} ` +
          "to it (npm install), or use only the calls that the stub has",
      );
      error.name = "SdkMissing";
      throw error;
    }
    return load(file);
  };
  if (kind === "lib-storage") {
    return require("./s3/storage").create(own);
  }
  // A name is in the file of every version that exports it.
  let text;
  const hasName = (name) => {
    text ??= fs.readFileSync(file, "utf8");
    const escaped = name.replace(/\$/g, "\\$");
    return !file.startsWith(ABSENT) && new RegExp(`(?<![\\w$])${escaped}(?![\\w$])`).test(text);
  };
  return require("./s3/index").create(own, hasName);
}

// Loads a file as the function's own, beside the stub: `import` takes the exports of the module in
// the cache, which are the stub's.
function loadBeside(load, file) {
  const cached = Module._cache[file];
  delete Module._cache[file];
  try {
    return load.call(Module, file, module, false);
  } finally {
    delete Module._cache[file];
    if (cached) {
      Module._cache[file] = cached;
    }
  }
}

// Takes effect for modules that are loaded afterwards.
exports.install = function install() {
  const load = Module._load;
  const stubs = new Map();
  const sdks = new Map();
  const own = (file) => {
    if (!sdks.has(file)) {
      sdks.set(file, loadBeside(load, file));
    }
    return sdks.get(file);
  };
  Module._load = function loadOrStub(request, parent, isMain) {
    const file = target(request, parent, Module._resolveFilename);
    const kind = file && PACKAGES.exec(file)?.[2];
    if (!kind) {
      return load.call(this, request, parent, isMain);
    }
    if (parent?.filename !== undefined && INSIDE.test(parent.filename)) {
      return own(file);
    }
    if (!stubs.has(file)) {
      stubs.set(file, stub(file, kind, own));
    }
    const exported = stubs.get(file);
    const imported = Module._cache[file];
    if (imported && !imported.loaded) {
      imported.exports = exported;
      imported.loaded = true;
    }
    return exported;
  };
};
