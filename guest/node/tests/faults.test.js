// Faults of the way to the host: attempts, broken bodies, and what a function sees of them, compared
// with the SDK.
"use strict";

const assert = require("node:assert");
const { execFile } = require("node:child_process");
const path = require("node:path");
const { test } = require("node:test");
const store = require("./store");

const SDK = process.env.UNLADE_NODE_SDK;
const skip = !SDK
  ? "no SDK: run guest/node/test, which installs it"
  : !store.unlade() && "no unlade: build it, or name it in UNLADE_BIN";

const error = (code) => `<?xml version="1.0"?><Error><Code>${code}</Code><Message>m</Message></Error>`;
// Faults by the key in the address: the n-th request for it.
const FAULTS = {
  "busy-once": (n) => n === 1 && { status: 503, body: error("SlowDown") },
  "busy": () => ({ status: 503, body: error("SlowDown") }),
  "internal": () => ({ status: 500, body: error("InternalError") }),
  "throttled-once": (n) => n === 1 && { status: 400, body: error("RequestLimitExceeded") },
  "reset-once": (n) => n === 1 && "reset",
  "denied": () => ({ status: 403, body: error("AccessDenied") }),
  "no-document": () => ({ status: 400, body: "not a document" }),
  "late": () => ({ status: 200, body: error("InternalError") }),
  "cut": () => ({ status: 200, headers: { "content-length": "100" }, body: "bytes", isCut: true }),
  "mismatch": () => ({
    status: 200,
    headers: { "x-amz-checksum-crc32": "AAAAAA==", "x-amz-checksum-type": "FULL_OBJECT" },
    body: "bytes",
  }),
};

function run(kind, url, bucket, name) {
  const words = [path.join(__dirname, "worker.js"), kind, SDK, bucket, name];
  const env = { ...store.variables(url), CASES: path.join(__dirname, "fault_cases.js") };
  return new Promise((resolve, reject) => {
    execFile(process.execPath, words, { env }, (failed, output, said) => {
      const line = output.split("\n").find((one) => one.startsWith("@"));
      line ? resolve(JSON.parse(line.slice(1))) : reject(new Error(`${failed}: ${said}`));
    });
  });
}

test("faults are as the SDK shows them", { skip }, async (t) => {
  const counts = new Map();
  const { url, buckets } = await store.start(t, (request) => {
    const [, bucket, key] = request.url.split("?")[0].split("/");
    const at = `${bucket}/${key}`;
    counts.set(at, (counts.get(at) ?? 0) + 1);
    return FAULTS[key]?.(counts.get(at));
  });
  const { cases } = require("./fault_cases");
  for (const name of Object.keys(cases)) {
    await t.test(name, async () => {
      const seen = {};
      for (const kind of ["sdk", "stub"]) {
        const bucket = `${kind}-${name.replaceAll("_", "-")}`;
        await buckets([bucket]);
        const { seen: value, isLoaded } = await run(kind, url, bucket, name);
        const asked = Object.fromEntries([...counts].filter(([at]) => at.startsWith(`${bucket}/`)));
        seen[kind] = JSON.parse(JSON.stringify({ value, asked }).replaceAll(bucket, "BUCKET"));
        assert.strictEqual(isLoaded, kind === "sdk");
      }
      assert.ok(!seen.sdk.value.failed, JSON.stringify(seen.sdk.value));
      assert.deepStrictEqual(seen.stub, seen.sdk);
    });
  }
});
