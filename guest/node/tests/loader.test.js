// Functions as authors write them: both kinds of modules, packages with and without an SDK, other
// clients beside the stub, and the switch.
"use strict";

const assert = require("node:assert");
const fs = require("node:fs");
const http = require("node:http");
const path = require("node:path");
const { test } = require("node:test");
const { directory, start } = require("./host");
const store = require("./store");

const SDK = process.env.UNLADE_NODE_SDK;
const skip = !SDK
  ? "no SDK: run guest/node/test, which installs it"
  : !store.unlade() && "no unlade: build it, or name it in UNLADE_BIN";

const LOADED = `Object.keys(process.mainModule.constructor._cache).some((file) => file.includes("/@smithy/core/"))`;
const WORK = `
  const at = { Bucket: "box", Key: "k" };
  const client = new S3Client({});
  await client.send(new PutObjectCommand({ ...at, Body: event.body }));
  const { Body } = await client.send(new GetObjectCommand(at));
  return [await Body.transformToString(), ${LOADED}];`;
const NAMES = "S3Client, PutObjectCommand, GetObjectCommand";
const CJS = `const { ${NAMES} } = require("@aws-sdk/client-s3"); exports.handler = async (event) => {${WORK}};`;
const ESM = `import { ${NAMES} } from "@aws-sdk/client-s3"; export const handler = async (event) => {${WORK}};`;
const DYNAMIC = `exports.handler = async (event) => {
  const { ${NAMES} } = await import("@aws-sdk/client-s3"); ${WORK} };`;
const STAR = `import * as all from "@aws-sdk/client-s3"; const { ${NAMES} } = all;
  export const handler = async (event) => {${WORK}};`;

// Starts the function in files, with the SDK beside them unless `bare`.
async function instance(t, files, { bare = false, variables = {} } = {}) {
  const { url, buckets, requests } = await store.start(t);
  await buckets(["box"]);
  const root = directory(t, files);
  if (!bare) {
    fs.symlinkSync(path.join(SDK, "node_modules"), path.join(root, "node_modules"));
  }
  const made = await start(t, root, "index.handler", { ...store.variables(url), ...variables });
  return { ...made, requests };
}

const result = async ({ invoke }, event) => {
  const { kind, body } = await invoke(event);
  assert.strictEqual(kind, "response", body);
  return JSON.parse(body);
};

for (const [name, files] of Object.entries({
  "CommonJS": { "index.js": CJS },
  "an ECMAScript module": { "index.mjs": ESM },
  "import in CommonJS": { "index.js": DYNAMIC },
  "all names of a module": { "index.mjs": STAR },
})) {
  test(`${name}: the stub is there, and the SDK is not loaded`, { skip }, async (t) => {
    assert.deepStrictEqual(await result(await instance(t, files), { body: "ü" }), ["ü", false]);
  });
}

test("without an SDK in the package the stub serves what it has, and says what is missing", { skip }, async (t) => {
  const source = `const s3 = require("@aws-sdk/client-s3"); const { Upload } = require("@aws-sdk/lib-storage");
    exports.handler = async (event) => {
      const client = new s3.S3Client({});
      const at = { Bucket: "box", Key: "k" };
      await new Upload({ client, params: { ...at, Body: "x" } }).done();
      const head = await client.send(new s3.HeadObjectCommand(at));
      const why = await client.send(new s3.GetBucketAclCommand({ Bucket: "box" })).catch((error) => error);
      let absent;
      try { require("@aws-sdk/client-dynamodb") } catch (error) { absent = error.code }
      return [head.ContentLength, why.name, why.message, absent];
    };`;
  const [length, name, message, absent] = await result(await instance(t, { "index.js": source }, { bare: true }), 1);
  assert.deepStrictEqual([length, name, absent], [1, "SdkMissing", "MODULE_NOT_FOUND"]);
  assert.match(message, /add @aws-sdk\/client-s3/);
});

test("a package that is missing is named, with what to do", { skip }, async (t) => {
  const source = `require("@aws-sdk/client-dynamodb")`;
  const made = await instance(t, { "index.js": source }, { bare: true });
  const error = await made.initError;
  assert.strictEqual(error.errorType, "Runtime.ImportModuleError");
  assert.match(error.errorMessage, /add it to the function's package/);
});

test("the switch gives the function its own SDK", { skip }, async (t) => {
  const made = await instance(t, { "index.js": CJS }, { variables: { NODE_SDK_STUB: "off" } });
  assert.deepStrictEqual(await result(made, { body: "x" }), ["x", true]);
});

test("clients with settings that the stub does not know are the SDK's", { skip }, async (t) => {
  const source = `const s3 = require("@aws-sdk/client-s3");
    exports.handler = async (config) => {
      const client = new s3.S3Client(config);
      const seen = await client.config.endpoint?.();
      const keys = await client.config.credentials();
      return [keys.accessKeyId, seen?.hostname ?? null, ${LOADED}];
    };`;
  const made = await instance(t, { "index.js": source });
  const own = { credentials: { accessKeyId: "AK", secretAccessKey: "SK" }, endpoint: "http://other.example" };
  assert.deepStrictEqual(await result(made, own), ["AK", "other.example", true]);
});

// The answer of the host's endpoint to a signature with keys of the function's own.
const REFUSAL = "<Error><Code>ForeignCredentials</Code><Message>leave the keys out</Message></Error>";

test("a client with keys of its own signs with them, and its first call is refused", { skip }, async (t) => {
  const signed = [];
  const server = http.createServer((request, response) => {
    signed.push(/Credential=(\w+)\//.exec(request.headers.authorization)?.[1]);
    request.resume().on("end", () => response.writeHead(403, { "content-type": "application/xml" }).end(REFUSAL));
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.after(() => server.close());
  const source = `const s3 = require("@aws-sdk/client-s3");
    const keys = { accessKeyId: "OWN", secretAccessKey: "SK" };
    exports.handler = async () => {
      const seen = [];
      for (const credentials of [keys, async () => keys]) {
        const client = new s3.S3Client({ credentials });
        const error = await client.send(new s3.GetObjectCommand({ Bucket: "box", Key: "k" })).catch((error) => error);
        seen.push([error.name, error.message, error.$metadata.httpStatusCode]);
      }
      return seen;
    };`;
  const root = directory(t, { "index.js": source });
  fs.symlinkSync(path.join(SDK, "node_modules"), path.join(root, "node_modules"));
  const url = `http://127.0.0.1:${server.address().port}`;
  const made = await start(t, root, "index.handler", store.variables(url));
  const refused = ["ForeignCredentials", "leave the keys out", 403];
  assert.deepStrictEqual(await result(made, 1), [refused, refused]);
  assert.deepStrictEqual(signed, ["OWN", "OWN"]);
});

test("keys that the code puts into the environment give the SDK, until a client has sent something", { skip }, async (t) => {
  const source = `const s3 = require("@aws-sdk/client-s3");
    const clients = [new s3.S3Client({}), new s3.S3Client({})];
    const head = (client) => client.send(new s3.HeadBucketCommand({ Bucket: "box" }));
    exports.handler = async () => {
      await head(clients[0]);
      const seen = [${LOADED}];
      process.env.AWS_ACCESS_KEY_ID = "OWN";
      await head(clients[0]);
      seen.push(${LOADED});
      await head(clients[1]).catch(() => {});
      return [...seen, ${LOADED}, (await clients[1].config.credentials()).accessKeyId];
    };`;
  const made = await instance(t, { "index.js": source });
  assert.deepStrictEqual(await result(made, 1), [false, false, true, "OWN"]);
});

test("presigned addresses and other clients are the SDK's", { skip }, async (t) => {
  const source = `const s3 = require("@aws-sdk/client-s3");
    const { getSignedUrl } = require("@aws-sdk/s3-request-presigner");
    const { DynamoDBClient } = require("@aws-sdk/client-dynamodb");
    exports.handler = async () => {
      const client = new s3.S3Client({ forcePathStyle: true });
      const command = new s3.GetObjectCommand({ Bucket: "box", Key: "a b" });
      const url = new URL(await getSignedUrl(client, command, { expiresIn: 60 }));
      const dynamo = new DynamoDBClient({});
      return [url.pathname, url.searchParams.get("X-Amz-Expires"), await dynamo.config.region()];
    };`;
  const made = await instance(t, { "index.js": source });
  assert.deepStrictEqual(await result(made, 1), ["/box/a%20b", "60", "us-east-1"]);
});

test("names that the tables do not have are those of the function's SDK", { skip }, async (t) => {
  const fake = `exports.S3Client = class {}; exports.NewCommand = class { constructor() { this.made = "own" } };
    exports.NewKind = { A: "a" }; exports.New$ = [1, 2];`;
  const files = {
    "node_modules/@aws-sdk/client-s3/package.json": '{"main": "./dist-cjs/index.js"}',
    "node_modules/@aws-sdk/client-s3/dist-cjs/index.js": fake,
    "index.mjs": `import { New$, NewCommand, NewKind, S3Client } from "@aws-sdk/client-s3";
      import { createRequire } from "node:module";
      const s3 = createRequire(import.meta.url)("@aws-sdk/client-s3");
      export const handler = async () => [new NewCommand().made, NewKind.A, New$[1], s3.Nothing === undefined,
        "Nothing" in s3, S3Client.name, Object.keys(s3).length > 600];`,
  };
  const made = await instance(t, files, { bare: true });
  assert.deepStrictEqual(await result(made, 1), ["own", "a", 2, true, false, "S3Client", true]);
});
