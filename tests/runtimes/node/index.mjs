// A function with AWS's own SDK, and its runtime interface client, `aws-lambda-ric`. As a program it
// does its work once, and prints the result: that is the comparison.
import { createHash } from "node:crypto";
import {
  CopyObjectCommand,
  DeleteObjectsCommand,
  GetObjectCommand,
  HeadObjectCommand,
  ListObjectsV2Command,
  PutObjectCommand,
  S3Client,
} from "@aws-sdk/client-s3";
import { Upload } from "@aws-sdk/lib-storage";

const KEY = "a b/ü+%";
const digest = (bytes) => createHash("sha256").update(bytes).digest("hex");

async function code(sent) {
  try {
    await sent;
  } catch (error) {
    return error.name;
  }
  return null;
}

async function work(bucket) {
  const s3 = new S3Client({ forcePathStyle: true });
  const at = (key, more) => ({ Bucket: bucket, Key: key, ...more });
  const small = "small ".repeat(1000);
  const about = { ContentType: "text/plain", Metadata: { who: "me" } };
  await s3.send(new PutObjectCommand(at(KEY, { Body: small, ...about })));
  const got = await s3.send(new GetObjectCommand(at(KEY)));
  const body = await got.Body.transformToByteArray();
  const out = { get: [digest(body), got.ContentType, got.Metadata, got.ETag] };
  const part = await s3.send(new GetObjectCommand(at(KEY, { Range: "bytes=3-9" })));
  out.range = [await part.Body.transformToString(), part.ContentRange];
  const large = Buffer.alloc(13 << 20, "0123456789abcdef");
  const done = await new Upload({ client: s3, params: at("large", { Body: large }) }).done();
  out.etag = done.ETag;
  const head = await s3.send(new HeadObjectCommand(at("large")));
  out.head = head.ContentLength;
  const again = await s3.send(new GetObjectCommand(at("large")));
  out.large = digest(await again.Body.transformToByteArray()) === digest(large);
  await s3.send(new CopyObjectCommand(at("copy", { CopySource: `${bucket}/large` })));
  const list = await s3.send(new ListObjectsV2Command({ Bucket: bucket }));
  out.list = list.Contents.map((object) => [object.Key, object.Size, object.ETag]);
  out.missing = await code(s3.send(new GetObjectCommand(at("none"))));
  out.absent = await code(s3.send(new HeadObjectCommand(at("none"))));
  const objects = [{ Key: "copy" }, { Key: "large" }];
  const gone = await s3.send(
    new DeleteObjectsCommand({ Bucket: bucket, Delete: { Objects: objects } }),
  );
  out.deleted = gone.Deleted.length;
  return out;
}

export async function handler(event) {
  if (event.fail) {
    throw new RangeError(event.fail);
  }
  return work(event.bucket);
}

if (!process.env.AWS_LAMBDA_RUNTIME_API) {
  console.log(JSON.stringify(await work(process.argv[2])));
}
