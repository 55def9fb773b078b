// Calls that the stub and the SDK make in the same way: each takes the exports of the packages, a
// client and a bucket, and returns what a function can see.
"use strict";

const fs = require("node:fs");
const os = require("node:os");
const path = require("node:path");
const { Readable, PassThrough } = require("node:stream");
const { pipeline } = require("node:stream/promises");

const AWKWARD = "a b/ü+%/(!'*)~.txt";
const cases = {};

// One call: its result or its exception.
async function tried(promise) {
  try {
    return await promise;
  } catch (error) {
    return { thrown: error };
  }
}

async function multipart({ s3, client, bucket, key }) {
  const at = { Bucket: bucket, Key: key };
  const { UploadId } = await client.send(new s3.CreateMultipartUploadCommand(at));
  const part = await client.send(
    new s3.UploadPartCommand({ ...at, UploadId, PartNumber: 1, Body: "part" }),
  );
  return { at, UploadId, part };
}

cases.put_bodies = async ({ s3, client, bucket }) => {
  const out = [];
  const bodies = ["text ü", Buffer.from("bytes"), new Uint8Array([1, 2, 3]), "", undefined, null];
  for (const [at, Body] of bodies.entries()) {
    out.push(await client.send(new s3.PutObjectCommand({ Bucket: bucket, Key: `body${at}`, Body })));
    out.push(await client.send(new s3.HeadObjectCommand({ Bucket: bucket, Key: `body${at}` })));
  }
  return out;
};

cases.put_streams = async ({ s3, client, bucket }) => {
  const file = path.join(fs.mkdtempSync(path.join(os.tmpdir(), "unlade-")), "file");
  fs.writeFileSync(file, "of a file ".repeat(20_000));
  const put = (Key, Body, more) => client.send(new s3.PutObjectCommand({ Bucket: bucket, Key, Body, ...more }));
  const out = [
    await put("file", fs.createReadStream(file)),
    await put("range", fs.createReadStream(file, { start: 3, end: 12 })),
    await put("stream", Readable.from([Buffer.from("abc"), Buffer.from("de")]), { ContentLength: 5 }),
    await put("coded", Readable.from([Buffer.from("abc")]), { ContentLength: 3, ContentEncoding: "x" }),
  ];
  for (const Key of ["file", "range", "stream", "coded"]) {
    const got = await client.send(new s3.GetObjectCommand({ Bucket: bucket, Key }));
    out.push(got, (await got.Body.transformToString()).slice(0, 40));
  }
  fs.rmSync(path.dirname(file), { recursive: true });
  return out;
};

cases.put_metadata = async ({ s3, client, bucket }) => {
  const put = await client.send(
    new s3.PutObjectCommand({
      Bucket: bucket,
      Key: AWKWARD,
      Body: "x",
      ContentType: "text/plain",
      CacheControl: "no-cache",
      ContentDisposition: "inline",
      ContentLanguage: "de",
      Metadata: { Who: "me", "with-dash": "1" },
      Expires: new Date(1893456000000),
      Tagging: "a=b&c=d%20e",
      StorageClass: "STANDARD",
    }),
  );
  const head = await client.send(new s3.HeadObjectCommand({ Bucket: bucket, Key: AWKWARD }));
  const tags = await client.send(new s3.GetObjectTaggingCommand({ Bucket: bucket, Key: AWKWARD }));
  return [put, head, tags];
};

cases.tags = async ({ s3, client, bucket }) => {
  const at = { Bucket: bucket, Key: "tagged" };
  await client.send(new s3.PutObjectCommand({ ...at, Body: "x" }));
  const TagSet = [{ Key: "a&<", Value: "1" }, { Key: "b", Value: "" }];
  return [
    await client.send(new s3.PutObjectTaggingCommand({ ...at, Tagging: { TagSet } })),
    await client.send(new s3.GetObjectTaggingCommand(at)),
    await client.send(new s3.DeleteObjectTaggingCommand(at)),
    await client.send(new s3.GetObjectTaggingCommand(at)),
  ];
};

cases.body_methods = async ({ s3, client, bucket }) => {
  const at = { Bucket: bucket, Key: "body" };
  const text = "ünïcode ".repeat(30_000);
  await client.send(new s3.PutObjectCommand({ ...at, Body: text }));
  const get = async (more) => (await client.send(new s3.GetObjectCommand({ ...at, ...more }))).Body;
  const twice = await get();
  await twice.transformToString();
  const web = await (await get()).transformToWebStream();
  let webBytes = 0;
  for await (const piece of web) webBytes += piece.byteLength;
  const sink = new PassThrough();
  let piped = 0;
  sink.on("data", (piece) => (piped += piece.length));
  await pipeline(await get(), sink);
  let iterated = 0;
  for await (const piece of await get()) iterated += piece.length;
  const bytes = await (await get()).transformToByteArray();
  return [
    (await (await get()).transformToString()) === text,
    (await (await get()).transformToString("base64")).slice(0, 40),
    (await (await get()).transformToString("latin1")).slice(0, 40),
    [bytes.constructor.name, bytes.byteLength],
    webBytes, piped, iterated,
    await (await get({ Range: "bytes=0-6" })).transformToString(),
    await tried(twice.transformToString()),
    await tried((async () => twice.transformToWebStream())()),
    twice instanceof Readable,
  ];
};

cases.get_conditions = async ({ s3, client, bucket }) => {
  const at = { Bucket: bucket, Key: "conditions" };
  const { ETag } = await client.send(new s3.PutObjectCommand({ ...at, Body: "0123456789" }));
  const head = await client.send(new s3.HeadObjectCommand(at));
  const get = (more) => tried(client.send(new s3.GetObjectCommand({ ...at, ...more })));
  return [
    await get({ IfMatch: ETag }), await get({ IfMatch: '"other"' }), await get({ IfNoneMatch: ETag }),
    await get({ IfModifiedSince: head.LastModified }), await get({ IfModifiedSince: new Date(0) }),
    await get({ Range: "bytes=2-4" }), await get({ Range: "bytes=99-" }),
    await get({ ResponseContentType: "a/b", ResponseCacheControl: "none" }),
    await tried(client.send(new s3.HeadObjectCommand({ ...at, IfNoneMatch: ETag }))),
    await tried(client.send(new s3.PutObjectCommand({ ...at, Body: "x", IfNoneMatch: "*" }))),
  ];
};

cases.absent = async ({ s3, client, bucket }) => {
  const at = { Bucket: bucket, Key: "absent/key" };
  const all = [
    new s3.GetObjectCommand(at), new s3.HeadObjectCommand(at), new s3.DeleteObjectCommand(at),
    new s3.CopyObjectCommand({ ...at, CopySource: `${bucket}/none` }),
    new s3.GetObjectCommand({ ...at, Bucket: `${bucket}-none` }),
    new s3.HeadBucketCommand({ Bucket: `${bucket}-none` }), new s3.HeadBucketCommand({ Bucket: bucket }),
    new s3.ListObjectsV2Command({ Bucket: `${bucket}-none` }),
    new s3.AbortMultipartUploadCommand({ ...at, UploadId: "none" }),
    new s3.ListPartsCommand({ ...at, UploadId: "none" }),
    new s3.CompleteMultipartUploadCommand({ ...at, UploadId: "none", MultipartUpload: { Parts: [] } }),
    new s3.DeleteObjectsCommand({ Bucket: bucket, Delete: { Objects: [] } }),
    new s3.PutObjectCommand({ ...at, Bucket: `${bucket}-none`, Body: "x" }),
  ];
  const out = [];
  for (const command of all) {
    out.push(await tried(client.send(command)));
  }
  return out;
};

cases.identities_of_errors = async ({ s3, client, bucket }) => {
  const at = { Bucket: bucket, Key: "none" };
  const missing = (await tried(client.send(new s3.GetObjectCommand(at)))).thrown;
  const head = (await tried(client.send(new s3.HeadObjectCommand(at)))).thrown;
  const denied = (await tried(client.send(new s3.PutObjectCommand({ ...at, IfMatch: '"x"', Body: "" })))).thrown;
  return [missing, head, denied].map((error) => [
    error instanceof s3.S3ServiceException, error instanceof s3.NoSuchKey, error instanceof s3.NotFound,
    error instanceof s3.NoSuchBucket, error instanceof Error, error.constructor.name,
    error.$response?.statusCode, String(error), error.stack.split("\n")[0],
    Object.keys(error).includes("message"),
  ]);
};

cases.validation = async ({ s3, client, bucket }) => {
  const inputs = [
    [s3.GetObjectCommand, { Key: "k" }], [s3.GetObjectCommand, { Bucket: bucket }],
    [s3.GetObjectCommand, { Bucket: "", Key: "k" }], [s3.GetObjectCommand, { Bucket: "a/b", Key: "k" }],
    [s3.GetObjectCommand, { Bucket: null, Key: "k" }], [s3.GetObjectCommand, undefined],
    [s3.PutObjectCommand, { Key: "k" }], [s3.ListObjectsV2Command, {}],
    [s3.ListObjectsV2Command, { Bucket: undefined }], [s3.DeleteObjectsCommand, { Delete: {} }],
    [s3.PutObjectCommand, { Bucket: bucket, Key: "k", Body: 5 }],
    [s3.PutObjectCommand, { Bucket: bucket, Key: "k", Body: Readable.from([Buffer.from("a")]) }],
    [s3.UploadPartCommand, { Bucket: bucket, Key: "k", Body: "x" }],
    [s3.GetObjectCommand, { Bucket: "arn:aws:s3:us-east-1:123456789012:accesspoint/x", Key: "k" }],
    [s3.GetObjectCommand, { Bucket: "Up_per", Key: "k" }],
    [s3.HeadObjectCommand, { Bucket: "directory--usw2-az1--x-s3", Key: "k" }],
    [s3.CopyObjectCommand, { Bucket: bucket, Key: "k" }],
    [s3.PutObjectCommand, { Bucket: bucket, Key: "k", Metadata: { a: "\u0416" }, Body: "x" }],
  ];
  const out = [];
  for (const [Command, input] of inputs) {
    out.push(await tried(client.send(new Command(input))));
  }
  return out;
};

cases.lists = async ({ s3, client, bucket }) => {
  const names = ["l/a", "l/b&<>\"'", "l/c/d", "l/c/e", "l/ü ", "l/z"];
  for (const Key of names) {
    await client.send(new s3.PutObjectCommand({ Bucket: bucket, Key, Body: Key }));
  }
  const list = (more) => client.send(new s3.ListObjectsV2Command({ Bucket: bucket, Prefix: "l/", ...more }));
  const first = await list({ MaxKeys: 2 });
  const pages = [];
  const config = { client, pageSize: 2 };
  for await (const page of s3.paginateListObjectsV2(config, { Bucket: bucket, Prefix: "l/" })) {
    pages.push([page.Contents.map((one) => one.Key), page.IsTruncated, page.KeyCount]);
  }
  const wrong = s3.paginateListObjectsV2({ client: {} }, { Bucket: bucket });
  return [
    await list(), await list({ Delimiter: "/" }), await list({ StartAfter: "l/c/d", FetchOwner: true }),
    await list({ EncodingType: "url" }), await list({ Prefix: "nothing" }), first.IsTruncated,
    await list({ MaxKeys: 0 }), pages, await tried(wrong.next()),
    await client.send(new s3.ListObjectsCommand({ Bucket: bucket, Prefix: "l/", MaxKeys: 3 })),
    await tried(list({ ContinuationToken: "wrong" })),
  ];
};

cases.copies_and_deletes = async ({ s3, client, bucket }) => {
  const put = (Key) => client.send(new s3.PutObjectCommand({ Bucket: bucket, Key, Body: "copy me" }));
  await put(AWKWARD);
  const CopySource = `${bucket}/${AWKWARD.split("/").map(encodeURIComponent).join("/")}`;
  const at = { Bucket: bucket, Key: "copied" };
  const Objects = ["copied", AWKWARD, "d&<>"].map((Key) => ({ Key }));
  return [
    await client.send(new s3.CopyObjectCommand({ ...at, CopySource })),
    await client.send(
      new s3.CopyObjectCommand({ ...at, CopySource, MetadataDirective: "REPLACE", Metadata: { n: "1" } }),
    ),
    await client.send(new s3.HeadObjectCommand(at)),
    await client.send(new s3.DeleteObjectsCommand({ Bucket: bucket, Delete: { Objects } })),
    await client.send(new s3.DeleteObjectsCommand({ Bucket: bucket, Delete: { Objects, Quiet: true } })),
    await client.send(new s3.DeleteObjectCommand(at)),
    await tried(client.send(new s3.HeadObjectCommand(at))),
  ];
};

cases.multipart_commands = async (given) => {
  const { s3, client, bucket } = given;
  const { at, UploadId, part } = await multipart({ ...given, key: "m/1" });
  const listed = await client.send(new s3.ListPartsCommand({ ...at, UploadId }));
  const uploads = await client.send(new s3.ListMultipartUploadsCommand({ Bucket: bucket }));
  const Parts = [{ PartNumber: 1, ETag: part.ETag }];
  const done = await client.send(
    new s3.CompleteMultipartUploadCommand({ ...at, UploadId, MultipartUpload: { Parts } }),
  );
  const second = await multipart({ ...given, key: "m/2" });
  const copied = await client.send(
    new s3.UploadPartCopyCommand({
      ...second.at, UploadId: second.UploadId, PartNumber: 2, CopySource: `${bucket}/m/1`,
    }),
  );
  const aborted = await client.send(
    new s3.AbortMultipartUploadCommand({ ...second.at, UploadId: second.UploadId }),
  );
  return [part, listed, uploads, done, copied, aborted];
};

cases.uploads = async ({ s3, storage, client, bucket }) => {
  const out = [];
  const bodies = {
    text: "small", none: "", bytes: Buffer.alloc(6 << 20, "ab"),
    stream: Readable.from([Buffer.alloc(5 << 20, 1), Buffer.alloc(3 << 20, 2)]),
    short: Readable.from([Buffer.from("sh"), Buffer.from("ort")]),
    blob: new Blob(["of a blob"]),
  };
  for (const [name, Body] of Object.entries(bodies)) {
    const params = { Bucket: bucket, Key: `up/${name}/ü !`, Body, ContentType: "a/b", Metadata: { m: "1" } };
    const upload = new storage.Upload({ client, params });
    const progress = [];
    upload.on("httpUploadProgress", (one) => progress.push(one));
    const done = await upload.done();
    const got = await client.send(new s3.GetObjectCommand({ Bucket: bucket, Key: params.Key }));
    const bytes = await got.Body.transformToByteArray();
    out.push(done, progress.map(({ total, Key }) => [total, Key]), progress.at(-1).loaded, got, bytes);
    out.push(await tried(upload.done()));
  }
  return out;
};

cases.upload_errors = async ({ storage, client, bucket }) => {
  const params = { Bucket: bucket, Key: "up/x", Body: "x" };
  const made = (options) => tried((async () => new storage.Upload(options).done())());
  const controller = new AbortController();
  const endless = new PassThrough();
  const stopped = new storage.Upload({
    client, params: { ...params, Body: endless }, abortController: controller,
  });
  const running = tried(stopped.done());
  await stopped.abort();
  endless.end();
  return [
    await made({ client }), await made({ params }), await made({ client, params, partSize: 5 }),
    await made({ client, params: { Bucket: bucket, Key: "up/none" } }),
    await made({ client, params: { ...params, Bucket: `${bucket}-none` } }),
    await made({ client, params: { ...params, Bucket: `${bucket}-none`, Body: Buffer.alloc(6 << 20) } }),
    await made({ client, params: { ...params, Body: {} } }),
    await running,
  ];
};

cases.callbacks_and_methods = async ({ s3, client, bucket }) => {
  const whole = new s3.S3({ forcePathStyle: true });
  const at = { Bucket: bucket, Key: "methods" };
  const called = (call) => new Promise((resolve) => call((error, value) => resolve([error, value])));
  const out = [
    await whole.putObject({ ...at, Body: "x" }), await whole.headObject(at),
    await called((done) => whole.getObjectTagging(at, done)),
    await called((done) => client.send(new s3.HeadObjectCommand(at), done)),
    await called((done) => client.send(new s3.HeadObjectCommand({ ...at, Key: "no" }), done)),
    whole instanceof s3.S3Client, client instanceof s3.S3Client, whole instanceof s3.S3,
    new s3.GetObjectCommand(at).input, s3.StorageClass.GLACIER, s3.ObjectCannedACL.private,
    client.constructor.name, new s3.PutObjectCommand({}).constructor.name,
  ];
  const pages = [];
  for await (const page of whole.paginateListObjectsV2({ Bucket: bucket, Prefix: "methods" })) {
    pages.push(page.KeyCount);
  }
  whole.destroy();
  return [...out, pages];
};

cases.aborts = async ({ s3, client, bucket }) => {
  const at = { Bucket: bucket, Key: "aborts" };
  const early = AbortSignal.abort();
  const named = AbortSignal.abort("a reason");
  const send = (abortSignal) => tried(client.send(new s3.HeadObjectCommand(at), { abortSignal }));
  return [await send(early), await send(named)].map(({ thrown }) => [thrown.name, thrown.message]);
};

// Exports that the stub does not have stand for the SDK's.
cases.exports_of_the_sdk = async ({ s3 }) => [
  Array.isArray(s3.PutObject$), s3.PutObject$.length, s3.PutObject$[2], [...s3.Delete$].length,
  typeof s3.$Command, new s3.$Command() instanceof s3.$Command, Object.keys(s3.StorageClass),
  Object.keys(s3).sort().filter((name) => !name.endsWith("$")), "GetObjectCommand" in s3, "Nothing" in s3,
  s3.Nothing, Object.keys({ ...s3 }).length, typeof s3.waitUntilBucketExists, typeof s3.NoSuchKey,
];

// Calls that the stub leaves to the SDK.
cases.of_the_sdk = async ({ s3, client, bucket }) => {
  const at = { Bucket: bucket, Key: "sdk" };
  const put = await client.send(
    new s3.PutObjectCommand({ ...at, Body: "x", ChecksumAlgorithm: "SHA256" }),
  );
  const attributes = await tried(
    client.send(new s3.GetObjectAttributesCommand({ ...at, ObjectAttributes: ["ETag", "ObjectSize"] })),
  );
  const location = await tried(client.send(new s3.GetBucketLocationCommand({ Bucket: bucket })));
  const other = new s3.S3Client({ forcePathStyle: true });
  const seen = [];
  other.middlewareStack.add(
    (next, context) => (args) => {
      seen.push(context.commandName);
      return next(args);
    },
    { step: "initialize", name: "seen" },
  );
  const head = await other.send(new s3.HeadObjectCommand(at));
  const command = new s3.HeadObjectCommand(at);
  command.middlewareStack.add((next) => (args) => {
    seen.push("of the command");
    return next(args);
  }, { step: "build", name: "own" });
  await client.send(command);
  const missing = await tried(other.send(new s3.GetObjectCommand({ ...at, Key: "none" })));
  const waited = await s3.waitUntilObjectExists({ client, maxWaitTime: 10 }, at);
  const region = await new s3.S3Client({ region: "eu-west-1" }).config.region();
  const { thrown } = missing;
  return [
    put, attributes, location, seen, head, missing, waited.state, region,
    thrown instanceof s3.S3ServiceException, thrown instanceof s3.NoSuchKey, thrown instanceof s3.NotFound,
  ];
};

module.exports = { cases };
