// Writes the stub's tables from the schemas of the SDK in DIRECTORY, or checks that they are its:
// node tests/tables.js DIRECTORY [--write]
"use strict";

const fs = require("node:fs");
const path = require("node:path");

const PACKAGE = path.join(__dirname, "../unlade_node");
// Operations that the stub makes; all others are the SDK's.
const OPERATIONS = [
  "AbortMultipartUpload",
  "CompleteMultipartUpload",
  "CopyObject",
  "CreateMultipartUpload",
  "DeleteObject",
  "DeleteObjectTagging",
  "DeleteObjects",
  "GetObject",
  "GetObjectTagging",
  "HeadBucket",
  "HeadObject",
  "ListMultipartUploads",
  "ListObjects",
  "ListObjectsV2",
  "ListParts",
  "PutObject",
  "PutObjectTagging",
  "UploadPart",
  "UploadPartCopy",
];
// Parameters that change how the SDK works: calls with them are the SDK's.
const LEFT_OUT = /^(Checksum.*|.*SSECustomer.*|WriteOffsetBytes|GrantReadACP|ExpiresString|ContentMD5)$/;
// Checksums that a caller may pass on, as a multipart upload does.
const KEPT = { CreateMultipartUpload: /^Checksum(Algorithm|Type)$/ };

const isLeftOut = (operation, name) => LEFT_OUT.test(name) && !KEPT[operation]?.test(name);

// Bits of traits that are numbers.
const LABEL = 1;
const PAYLOAD = 16;

const SCALARS = {
  0: "string",
  1: "number",
  2: "boolean",
  4: "date",
  5: "date",
  6: "http-date",
  7: "epoch",
  17: "number",
  21: "blob",
  42: "stream",
};

// A reference without its traits, and the traits.
function plain(reference, traits) {
  let schema = reference;
  let found = traits;
  for (;;) {
    if (typeof schema === "function") {
      schema = schema();
    } else if (Array.isArray(schema) && (typeof schema[0] !== "number" || schema.length === 2)) {
      // [reference, traits]
      found = { ...(typeof schema[1] === "object" ? schema[1] : { bits: schema[1] }), ...found };
      schema = schema[0];
    } else {
      return [schema, found];
    }
  }
}

function traitsOf(member) {
  const [schema, found] = plain(member, {});
  const bits = found.bits ?? 0;
  if (bits & LABEL) found.httpLabel = 1;
  if (bits & PAYLOAD) found.httpPayload = 1;
  return [schema, found];
}

class Tables {
  constructor() {
    this.shapes = {};
  }

  // The type of a schema: a name, ["list", type, element name or null if flattened] or
  // ["shape", name].
  type(schema, traits) {
    if (typeof schema === "number" && schema >= 64 && schema < 128) {
      return ["list", this.type(schema - 64, {}), traits.xmlFlattened ? null : "member"];
    }
    if (typeof schema === "number") {
      if (!(schema in SCALARS)) throw new Error(`type ${schema}`);
      return SCALARS[schema];
    }
    const [kind, , name, own] = schema;
    if (kind === 0) {
      // A simple shape with traits: [0, namespace, name, traits, type].
      return this.type(schema[4], traits);
    }
    if (kind === 1) {
      const [element, of] = traitsOf(schema[4]);
      const isFlat = traits.xmlFlattened || own?.xmlFlattened;
      return ["list", this.type(element, of), isFlat ? null : (of.xmlName ?? "member")];
    }
    if (kind === 3) {
      this.shape(schema);
      return ["shape", name];
    }
    throw new Error(`${name}: kind ${kind}`);
  }

  shape([, , name, , names, members]) {
    if (this.shapes[name]) {
      return;
    }
    this.shapes[name] = {};
    names.forEach((member, at) => {
      const [schema, traits] = traitsOf(members[at]);
      const attribute = traits.xmlAttribute ? { attribute: true } : {};
      const row = { name: traits.xmlName ?? member, type: this.type(schema, traits), ...attribute };
      this.shapes[name][member] = row;
    });
  }

  member(member, schema, traits, isInput) {
    const place = (at, name, type) => ({ at, name, type });
    if (traits.httpPrefixHeaders) {
      return place("prefix", traits.httpPrefixHeaders, "map");
    }
    const isHeader = traits.httpHeader !== undefined;
    const type = this.type(schema, traits);
    if (traits.httpLabel) return place("label", member, type);
    // Dates in header fields have another form than those in documents.
    if (isHeader) return place("header", traits.httpHeader.toLowerCase(), schema === 4 ? "http-date" : type);
    if (traits.httpQuery) return place("query", traits.httpQuery, type);
    if (traits.httpPayload) {
      const root = traits.xmlName ?? (Array.isArray(schema) ? schema[2] : member);
      return place("payload", isInput ? root : member, type);
    }
    return place("document", traits.xmlName ?? member, type);
  }

  members([, , , , names, members], operation, isInput) {
    const out = {};
    names.forEach((name, at) => {
      if (isInput && isLeftOut(operation, name)) {
        return;
      }
      const [schema, traits] = traitsOf(members[at]);
      out[name] = this.member(name, schema, traits, isInput);
    });
    return out;
  }
}

function operations(sdk) {
  const tables = new Tables();
  const rows = {};
  for (const name of OPERATIONS) {
    const [, , , traits, input, output] = sdk[`${name}$`];
    const [method, target] = traits.http;
    const [, query = ""] = target.split("?");
    const [inputSchema] = plain(input, {});
    const [outputSchema] = plain(output, {});
    const known = inputSchema[4];
    rows[name] = {
      method,
      hasKey: known.includes("Key"),
      query: Object.fromEntries(query.split("&").filter(Boolean).map((pair) => {
        const [key, value = ""] = pair.split("=");
        return [key, value];
      })),
      hasChecksum: traits.httpChecksum !== undefined,
      input: tables.members(inputSchema, name, true),
      ofSdk: known.filter((member) => isLeftOut(name, member)),
      output: Array.isArray(outputSchema) && outputSchema[4] ? tables.members(outputSchema, name, false) : {},
    };
  }
  return { rows, shapes: tables.shapes };
}

function names(sdk) {
  const out = { commands: [], errors: {}, enumerations: {}, functions: [], classes: [], schemas: [] };
  for (const [name, value] of Object.entries(sdk)) {
    if (name.endsWith("Command") && name !== "$Command") {
      out.commands.push(name.slice(0, -"Command".length));
    } else if (name === "S3ServiceException" || name === "S3Client" || name === "S3") {
      continue;
    } else if (value?.prototype instanceof sdk.S3ServiceException) {
      const schema = sdk[`${name}$`];
      out.errors[name] = { fault: schema[3].error, members: schema[4] };
    } else if (typeof value === "function") {
      (/^[a-z]/.test(name) ? out.functions : out.classes).push(name);
    } else if (Array.isArray(value) || name.endsWith("$")) {
      out.schemas.push(name);
    } else if (Object.values(value).every((one) => typeof one === "string")) {
      out.enumerations[name] = value;
    } else {
      out.schemas.push(name);
    }
  }
  return out;
}

const line = (value) => JSON.stringify(value);
// Each row is a function, so that only the rows in use become objects.
const lazy = (table) => Object.entries(table).map(([name, row]) => `  ${name}: () => (${line(row)}),\n`).join("");
const rows = (table) => Object.entries(table).map(([name, row]) => `  ${line(name)}: ${line(row)},\n`).join("");
const HEAD = (version) =>
  `// Generated by tests/tables.js from @aws-sdk/client-s3 ${version}.\n"use strict";\n\n`;

function files(directory) {
  const root = path.join(directory, "node_modules/@aws-sdk/client-s3");
  const sdk = require(root);
  const { version } = JSON.parse(fs.readFileSync(path.join(root, "package.json"), "utf8"));
  const { rows: operationRows, shapes } = operations(sdk);
  const found = names(sdk);
  const { enumerations } = found;
  const { schemas, ...rest } = found;
  const others = { ...rest, enumerations: Object.keys(enumerations), stub: OPERATIONS };
  const operationFiles = Object.fromEntries(
    Object.entries(operationRows).map(([name, row]) => [
      `s3/operations/${name}.js`,
      `${HEAD(version)}module.exports = {\n${rows(row)}};\n`,
    ]),
  );
  const all = Object.keys(sdk).filter((name) => /^[A-Za-z_$][\w$]*$/.test(name));
  const absent = `"use strict";
throw new Error("the function's package has no @aws-sdk/client-s3: add it, or remove NODE_SDK_STUB");
0 && (module.exports = { ${all.join(", ")} });
`;
  return {
    ...operationFiles,
    "s3/shapes.js": `${HEAD(version)}module.exports = {\n${lazy(shapes)}};\n`,
    "s3/names.js": `${HEAD(version)}module.exports = {\n${rows(others)}};\n`,
    "s3/schemas.js": `${HEAD(version)}module.exports = ${line(schemas)};\n`,
    "s3/enumerations.js": `${HEAD(version)}module.exports = {\n${rows(enumerations)}};\n`,
    "node_modules/@aws-sdk/client-s3/dist-cjs/index.js": absent,
    "node_modules/@aws-sdk/client-s3/package.json": `${line({ name: "@aws-sdk/client-s3", version, main: "./dist-cjs/index.js" })}\n`,
    "node_modules/@aws-sdk/lib-storage/dist-cjs/index.js": absent
      .replace("client-s3", "lib-storage")
      .replace(/\{.*\}/, "{ Upload }"),
    "node_modules/@aws-sdk/lib-storage/package.json": `${line({ name: "@aws-sdk/lib-storage", version, main: "./dist-cjs/index.js" })}\n`,
  };
}

// Names of the files that differ from those of the SDK in the directory.
function differing(directory) {
  return Object.entries(files(directory))
    .filter(([name, due]) => {
      const file = path.join(PACKAGE, name);
      return !fs.existsSync(file) || fs.readFileSync(file, "utf8") !== due;
    })
    .map(([name]) => name);
}

module.exports = { differing };

if (require.main === module) {
  const [directory, flag] = process.argv.slice(2);
  if (flag === "--write") {
    for (const [name, content] of Object.entries(files(directory))) {
      const file = path.join(PACKAGE, name);
      fs.mkdirSync(path.dirname(file), { recursive: true });
      fs.writeFileSync(file, content);
    }
  }
  const found = differing(directory);
  found.forEach((name) => console.log(`differs: ${name}`));
  process.exit(found.length > 0 ? 1 : 0);
}
