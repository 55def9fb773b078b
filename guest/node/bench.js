// The stub beside the SDK in sandboxes of one gateway, in interleaved rounds: cold starts, warm
// calls, and the memory of instances. node bench.js DIRECTORY [ROUNDS], as root; DIRECTORY has the
// SDK in node_modules (guest/node/test installs one).
"use strict";

const { execFileSync, spawn } = require("node:child_process");
const { createHash, createHmac } = require("node:crypto");
const fs = require("node:fs");
const http = require("node:http");
const os = require("node:os");
const path = require("node:path");
const { unlade } = require("./tests/store");

const INSTANCES = 4;
// Warm calls of a round.
const CALLS = 5;
const OBJECT_BYTES = 64 * 1024;
const PATIENCE_MS = 60_000;
const PROGRAM = `const { S3Client, GetObjectCommand, PutObjectCommand } = require("@aws-sdk/client-s3");
const s3 = new S3Client({});
exports.handler = async ({ pause_ms = 0 }) => {
  const { Body } = await s3.send(new GetObjectCommand({ Bucket: "bench", Key: "in" }));
  const bytes = await Body.transformToByteArray();
  await s3.send(new PutObjectCommand({ Bucket: "bench", Key: "out", Body: bytes }));
  await new Promise((resolve) => setTimeout(resolve, pause_ms));
  return bytes.length;
};
`;

const [directory, rounds = "12"] = process.argv.slice(2);
const state = fs.mkdtempSync(path.join(os.tmpdir(), "unlade-node-bench-"));
fs.chmodSync(state, 0o755);

const hmac = (key, text) => createHmac("sha256", key).update(text).digest();
const sha = (text) => createHash("sha256").update(text).digest("hex");

// A request to the gateway, signed.
function ask(gateway, method, target, body = "") {
  const date = `${new Date().toISOString().replace(/[-:]|\.\d+/g, "")}`;
  const scope = `${date.slice(0, 8)}/us-east-1/lambda/aws4_request`;
  const canonical = `${method}\n${target}\n\nhost:${gateway.host}\nx-amz-date:${date}\n\nhost;x-amz-date\n${sha(body)}`;
  const text = `AWS4-HMAC-SHA256\n${date}\n${scope}\n${sha(canonical)}`;
  const key = scope.split("/").reduce((last, part) => hmac(last, part), `AWS4${gateway.secret}`);
  const headers = {
    host: gateway.host,
    "x-amz-date": date,
    authorization: `AWS4-HMAC-SHA256 Credential=${gateway.key}/${scope}, SignedHeaders=host;x-amz-date, Signature=${hmac(key, text).toString("hex")}`,
  };
  return new Promise((resolve, reject) => {
    const request = http.request(`http://${gateway.host}${target}`, { method, headers }, (answer) => {
      let said = "";
      answer.on("data", (piece) => (said += piece));
      answer.on("end", () => resolve({ status: answer.statusCode, headers: answer.headers, body: said }));
    });
    request.on("error", reject).end(body);
  });
}

async function invoke(gateway, name, event) {
  const begin = process.hrtime.bigint();
  const answer = await ask(gateway, "POST", `/2015-03-31/functions/${name}/invocations`, JSON.stringify(event));
  const took_ms = Number(process.hrtime.bigint() - begin) / 1e6;
  if (answer.body !== String(OBJECT_BYTES)) {
    throw new Error(`${name}: ${answer.body}`);
  }
  return { took_ms, origin: answer.headers["x-unlade-origin"] };
}

// Processes of a function's instances: those with its name in their environment.
function processes(name) {
  const due = `AWS_LAMBDA_FUNCTION_NAME=${name}`;
  return fs.readdirSync("/proc").filter((pid) => {
    try {
      return /^\d+$/.test(pid) && fs.readFileSync(`/proc/${pid}/environ`, "utf8").split("\0").includes(due);
    } catch {
      return false;
    }
  });
}

function memory_mib(name) {
  let pss = 0;
  let own = 0;
  for (const pid of processes(name)) {
    const text = fs.readFileSync(`/proc/${pid}/smaps_rollup`, "utf8");
    const of = (field) => Number(new RegExp(`^${field}:\\s+(\\d+)`, "m").exec(text)[1]) / 1024;
    pss += of("Pss");
    own += of("Private_Clean") + of("Private_Dirty");
  }
  return { pss: pss / INSTANCES, own: own / INSTANCES };
}

async function until(isDone) {
  const end = Date.now() + PATIENCE_MS;
  while (!isDone()) {
    if (Date.now() > end) {
      throw new Error("it takes too long");
    }
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

function median(values) {
  const sorted = [...values].sort((one, other) => one - other);
  return sorted[Math.floor(sorted.length / 2)];
}

function show(name, values) {
  const [stub, sdk] = ["stub", "sdk"].map((kind) => median(values[kind]));
  console.log(`${name.padEnd(34)} stub ${stub.toFixed(1).padStart(8)}  sdk ${sdk.toFixed(1).padStart(8)}  ratio ${(stub / sdk).toFixed(2)}`);
}

async function measure(gateway) {
  const warm = { stub: [], sdk: [] };
  const cold = { stub: [], sdk: [] };
  const pss = { stub: [], sdk: [] };
  const own = { stub: [], sdk: [] };
  for (let round = 0; round < Number(rounds); round += 1) {
    const kinds = round % 2 === 0 ? ["stub", "sdk"] : ["sdk", "stub"];
    for (const kind of kinds) {
      await until(() => processes(`cold-${kind}`).length === 0);
      const { took_ms, origin } = await invoke(gateway, `cold-${kind}`, {});
      if (origin !== "cold") {
        throw new Error(`a start is ${origin}`);
      }
      cold[kind].push(took_ms);
    }
    const together = kinds.flatMap((kind) =>
      Array.from({ length: INSTANCES }, () => invoke(gateway, `warm-${kind}`, { pause_ms: 1500 })),
    );
    await Promise.all(together);
    for (const kind of Array.from({ length: CALLS }, () => kinds).flat()) {
      warm[kind].push((await invoke(gateway, `warm-${kind}`, {})).took_ms);
    }
    for (const kind of kinds) {
      const found = memory_mib(`warm-${kind}`);
      pss[kind].push(found.pss);
      own[kind].push(found.own);
    }
  }
  show("cold start and first result, ms", cold);
  show("warm invocation, ms", warm);
  show(`PSS of an instance of ${2 * INSTANCES}, MiB`, pss);
  show("private memory of an instance, MiB", own);
}

async function run() {
  const program = unlade();
  const log = fs.openSync(path.join(state, "log"), "w");
  const config = path.join(state, "fn.toml");
  fs.writeFileSync(config, 'store_listen = "127.0.0.1:0"\n');
  const words = ["fn", "serve", "--config", config, "--listen", "127.0.0.1:0", "--state", path.join(state, "fn")];
  const serving = spawn(program, words, { stdio: ["ignore", "pipe", log] });
  const ended = new Promise((resolve) => serving.once("close", resolve));
  try {
    const address = await new Promise((resolve, reject) => {
      serving.stdout.once("data", (text) => resolve(String(text).trim()));
      ended.then(() => reject(new Error(fs.readFileSync(path.join(state, "log"), "utf8"))));
    });
    const keys = fs.readFileSync(path.join(state, "fn/credentials"), "utf8");
    const value = (name) => new RegExp(`${name}\\s*=\\s*(\\S+)`).exec(keys)[1];
    const gateway = { host: new URL(address).host, key: value("aws_access_key_id"), secret: value("aws_secret_access_key") };
    const objects = path.join(state, "fn/objects/bench");
    fs.mkdirSync(objects, { recursive: true });
    fs.writeFileSync(path.join(objects, "in"), Buffer.alloc(OBJECT_BYTES, "x"));
    for (const kind of ["stub", "sdk"]) {
      const source = path.join(state, `source-${kind}`);
      fs.mkdirSync(source);
      fs.writeFileSync(path.join(source, "index.js"), PROGRAM);
      fs.cpSync(path.join(directory, "node_modules"), path.join(source, "node_modules"), { recursive: true });
      for (const [name, keepAlive] of [["cold", "200ms"], ["warm", "10m"]]) {
        const lines = ['handler = "index.handler"', 'runtime = "nodejs"', 'memory = "256MiB"', `keep_alive = "${keepAlive}"`, "[environment]"];
        lines.push(kind === "sdk" ? 'NODE_SDK_STUB = "off"' : "");
        fs.writeFileSync(path.join(source, "function.toml"), lines.join("\n"));
        execFileSync(program, ["fn", "deploy", "--gateway", address, "--state", path.join(state, "fn"), "--name", `${name}-${kind}`, source]);
      }
    }
    await measure(gateway);
  } finally {
    serving.kill("SIGTERM");
    await ended;
    fs.rmSync(state, { recursive: true, force: true });
  }
}

run().catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
