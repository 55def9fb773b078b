// The stub against the SDK: the same calls, the same results and exceptions.
"use strict";

const assert = require("node:assert");
const { execFile } = require("node:child_process");
const path = require("node:path");
const { test } = require("node:test");
const { cases } = require("./cases");
const { differing } = require("./tables");
const store = require("./store");

const SDK = process.env.UNLADE_NODE_SDK;
const skip = !SDK
  ? "no SDK: run guest/node/test, which installs it"
  : !store.unlade() && "no unlade: build it, or name it in UNLADE_BIN";
// Cases with calls that the stub leaves to the SDK.
const WITH_SDK = new Set(["exports_of_the_sdk", "of_the_sdk", "upload_errors", "validation"]);

function run(kind, url, bucket, names) {
  const words = [path.join(__dirname, "worker.js"), kind, SDK, bucket, ...names];
  return new Promise((resolve, reject) => {
    const options = { env: store.variables(url), maxBuffer: 1 << 26 };
    execFile(process.execPath, words, options, (error, output, said) => {
      const lines = output.split("\n").filter((line) => line.startsWith("@"));
      if (lines.length !== names.length) {
        reject(new Error(`${kind}: ${error}: ${said}`));
        return;
      }
      resolve(Object.fromEntries(lines.map((line) => JSON.parse(line.slice(1))).map((one) => [one.name, one])));
    });
  });
}

test("the tables are those of the SDK", { skip }, () => {
  assert.deepStrictEqual(differing(SDK), []);
});

test("the stub is as the SDK", { skip }, async (t) => {
  const { url, buckets } = await store.start(t);
  const names = process.env.CASE ? process.env.CASE.split(",") : Object.keys(cases);
  await buckets([...names.map((name) => `stub-${name.replaceAll("_", "-")}`)]);
  for (const name of names) {
    await t.test(name, async () => {
      // The same objects are there, and no others, for both.
      const bucket = `sdk-${name.replaceAll("_", "-")}`;
      await buckets([bucket]);
      const due = (await run("sdk", url, bucket, [name]))[name];
      const stub = (await run("stub", url, `stub-${name.replaceAll("_", "-")}`, [name]))[name];
      assert.ok(!due.seen.failed, JSON.stringify(due.seen));
      assert.deepStrictEqual(stub.seen, due.seen);
      assert.strictEqual(stub.isLoaded, WITH_SDK.has(name), "the SDK is loaded where it is needed");
      assert.ok(due.isLoaded);
    });
  }
});
