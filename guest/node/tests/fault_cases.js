// Calls whose answers fail, by their key.
"use strict";

const { Readable } = require("node:stream");

const cases = {};
const tried = (promise) => promise.catch((error) => ({ thrown: error }));

cases.attempts = async ({ s3, client, bucket }) => {
  const out = [];
  for (const Key of ["busy-once", "busy", "internal", "throttled-once", "reset-once", "denied", "no-document"]) {
    const at = { Bucket: bucket, Key };
    out.push(await tried(client.send(new s3.PutObjectCommand({ ...at, Body: "x" }))));
  }
  const once = new s3.S3Client({ forcePathStyle: true, maxAttempts: 1 });
  out.push(await tried(once.send(new s3.PutObjectCommand({ Bucket: bucket, Key: "busy", Body: "x" }))));
  return out;
};

cases.streams_are_sent_once = async ({ s3, client, bucket }) => {
  const Body = Readable.from([Buffer.from("abc")]);
  const input = { Bucket: bucket, Key: "busy", Body, ContentLength: 3 };
  return tried(client.send(new s3.PutObjectCommand(input)));
};

cases.errors_in_an_answer_of_success = async ({ s3, client, bucket }) => {
  const input = { Bucket: bucket, Key: "late", CopySource: `${bucket}/x` };
  return tried(client.send(new s3.CopyObjectCommand(input)));
};

cases.bodies_that_break_off = async ({ s3, client, bucket }) => {
  const get = async () => (await client.send(new s3.GetObjectCommand({ Bucket: bucket, Key: "cut" }))).Body;
  const iterated = async (body) => {
    for await (const piece of body) piece.toString();
  };
  const list = client.send(new s3.ListPartsCommand({ Bucket: bucket, Key: "cut", UploadId: "u" }));
  return [
    await tried((await get()).transformToString()),
    await tried(iterated(await get())),
    await tried(list),
  ];
};

cases.checksums = async ({ s3, client, bucket }) => {
  const { Body } = await client.send(new s3.GetObjectCommand({ Bucket: bucket, Key: "mismatch" }));
  return tried(Body.transformToString());
};

module.exports = { cases };
