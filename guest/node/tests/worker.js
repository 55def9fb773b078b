// Runs cases with one implementation: worker.js stub|sdk DIRECTORY BUCKET CASE… Prints a line of
// JSON for each: what was seen, and whether the SDK was loaded.
"use strict";

const { createRequire } = require("node:module");
const path = require("node:path");
const { plain } = require("./observe");

const [kind, directory, bucket, ...names] = process.argv.slice(2);
if (kind === "stub") {
  require("../unlade_node/loader").install();
}
const own = createRequire(path.join(directory, "index.js"));
const { cases } = require(process.env.CASES ?? "./cases");

async function run() {
  for (const name of names) {
    const s3 = own("@aws-sdk/client-s3");
    const storage = own("@aws-sdk/lib-storage");
    const client = new s3.S3Client({ forcePathStyle: true });
    let seen;
    try {
      seen = plain(await cases[name]({ s3, storage, client, bucket, own }));
    } catch (error) {
      seen = { failed: plain(error), stack: error.stack };
    }
    const isLoaded = Object.keys(require.cache).some((file) => file.includes("/@smithy/core/"));
    const text = JSON.stringify({ name, seen, isLoaded });
    process.stdout.write(`@${text.replaceAll(bucket, "BUCKET")}\n`);
  }
  process.exit();
}
run();
