// The runtime without S3: handlers in all forms, errors in Lambda's form.
"use strict";

const assert = require("node:assert");
const { test } = require("node:test");
const { directory, start } = require("./host");

// Invokes one function for each event; returns the answers with parsed bodies.
async function answers(t, files, handler, events, variables) {
  const instance = await start(t, directory(t, files), handler, variables);
  const out = [];
  for (const event of events) {
    const { kind, body } = await instance.invoke(event);
    out.push([kind, kind === "ended" ? body : JSON.parse(body)]);
  }
  return out;
}

const CASES = {
  "an async handler": ["exports.handler = async (event) => ({ got: event })", { got: 1 }],
  "a promise": ["exports.handler = (e) => Promise.resolve([e])", [1]],
  "a callback": ["exports.handler = (e, c, callback) => callback(null, e + 1)", 2],
  "a late callback": [
    "exports.handler = (e, c, callback) => { setTimeout(() => callback(null, 'late'), 1) }",
    "late",
  ],
  "nothing": ["exports.handler = () => {}", null],
  "a promise that nobody resolves": ["exports.handler = () => new Promise(() => {})", null],
  "undefined": ["exports.handler = async () => undefined", null],
  "context.succeed": ["exports.handler = (e, context) => context.succeed('s')", "s"],
  "context.done": ["exports.handler = (e, context) => context.done(null, 'd')", "d"],
  "a nested member": ["exports.handler = { inner: async () => 5 }", 5, "index.handler.inner"],
  "the context": [
    `exports.handler = async (e, c) => [c.functionName, c.functionVersion, c.memoryLimitInMB,
       c.awsRequestId, c.invokedFunctionArn, c.callbackWaitsForEmptyEventLoop,
       c.getRemainingTimeInMillis() > 1000 && c.getRemainingTimeInMillis() <= 30000,
       process.env._X_AMZN_TRACE_ID, process.env.AWS_EXECUTION_ENV]`,
    [
      "f",
      "$LATEST",
      "128",
      "id-1",
      "arn:aws:lambda:us-east-1:0:function:f",
      true,
      true,
      "Root=1-id-1",
      `AWS_Lambda_nodejs${process.versions.node.split(".")[0]}.x`,
    ],
  ],
  "a streamed response": [
    `exports.handler = awslambda.streamifyResponse(async (event, stream) => {
       stream.setContentType("text/plain"); stream.write('"a'); stream.write('b"'); stream.end(); })`,
    "ab",
  ],
};

for (const [name, [source, due, handler = "index.handler"]] of Object.entries(CASES)) {
  test(`a handler: ${name}`, async (t) => {
    const answered = await answers(t, { "index.js": source }, handler, [1]);
    assert.deepStrictEqual(answered, [["response", due]]);
  });
}

test("a callback's answer waits for the event loop, if the handler does not say otherwise", async (t) => {
  const source = `exports.handler = (event, context, callback) => {
    const order = [];
    context.callbackWaitsForEmptyEventLoop = event.waits;
    setTimeout(() => order.push("timer"), 50);
    callback(null, { get waited() { return order.length } });
  }`;
  const files = { "index.js": source };
  const answered = await answers(t, files, "index.handler", [{ waits: true }, { waits: false }]);
  assert.deepStrictEqual(answered, [
    ["response", { waited: 1 }],
    ["response", { waited: 0 }],
  ]);
});

test("modules of both kinds are handlers, below directories, too", async (t) => {
  const esm = "export const handler = async () => import.meta.url.split('/').pop()";
  const cjs = "exports.handler = async () => __filename.split('/').pop()";
  const kinds = [
    [{ "index.mjs": esm }, "index.handler", "index.mjs"],
    [{ "index.cjs": cjs }, "index.handler", "index.cjs"],
    [{ "index.js": esm, "package.json": '{"type": "module"}' }, "index.handler", "index.js"],
    [{ "src/app.js": cjs, "src/app.mjs": esm }, "src/app.handler", "app.js"],
  ];
  for (const [files, handler, due] of kinds) {
    assert.deepStrictEqual(await answers(t, files, handler, [0]), [["response", due]]);
  }
});

test("errors of a handler have Lambda's form, and the instance goes on", async (t) => {
  const source = `class Mine extends Error { constructor(m) { super(m); this.name = "Mine" } }
    exports.handler = async (event) => {
      if (event === 1) throw new Mine("why");
      if (event === 2) throw "text";
      if (event === 3) throw undefined;
      if (event === 4) return 5n;
      if (event === 5) { const cycle = {}; cycle.cycle = cycle; return cycle }
      return "on";
    }`;
  const events = [1, 2, 3, 4, 5, 6];
  const answered = await answers(t, { "index.js": source }, "index.handler", events);
  const [mine, said, absent, large, cycle, on] = answered;
  assert.deepStrictEqual([mine[0], mine[1].errorType, mine[1].errorMessage], ["error", "Mine", "why"]);
  assert.strictEqual(mine[1].trace[0], "Mine: why");
  assert.match(mine[1].trace[1], /index\.js/);
  assert.deepStrictEqual(said, ["error", { errorType: "string", errorMessage: "text", trace: [] }]);
  assert.deepStrictEqual(absent[1].errorType, "undefined");
  assert.deepStrictEqual([large[0], large[1].errorType], ["error", "Runtime.MarshalError"]);
  assert.deepStrictEqual([cycle[0], cycle[1].errorType], ["error", "Runtime.MarshalError"]);
  assert.deepStrictEqual(on, ["response", "on"]);
});

test("a callback with an error, and a handler that throws at once, are errors", async (t) => {
  const source = `exports.handler = (event, context, callback) => {
    if (event === 1) return callback(new TypeError("called"));
    if (event === 2) return context.fail("failed");
    throw new RangeError("thrown");
  }`;
  const answered = await answers(t, { "index.js": source }, "index.handler", [1, 2, 3]);
  assert.deepStrictEqual(
    answered.map(([kind, { errorType, errorMessage }]) => [kind, errorType, errorMessage]),
    [
      ["error", "TypeError", "called"],
      ["error", "string", "failed"],
      ["error", "RangeError", "thrown"],
    ],
  );
});

test("an error that nobody catches reaches the caller, and ends the instance", async (t) => {
  for (const [source, type, status] of [
    ["Promise.reject(new Error('lost')); await new Promise(() => {})", "Runtime.UnhandledPromiseRejection", 128],
    ["setImmediate(() => { throw new EvalError('lost') }); await new Promise(() => {})", "EvalError", 129],
  ]) {
    const files = { "index.js": `exports.handler = async () => { ${source} }` };
    const instance = await start(t, directory(t, files), "index.handler");
    const { kind, body } = await instance.invoke(1);
    assert.deepStrictEqual([kind, JSON.parse(body).errorType], ["error", type]);
    assert.match(JSON.parse(body).errorMessage, /lost/);
    assert.strictEqual(await instance.ended, status);
  }
});

test("what cannot be loaded is an error of the start, with Lambda's type", async (t) => {
  for (const [files, handler, type, message] of [
    [{}, "index.handler", "Runtime.ImportModuleError", /index\.mjs/],
    [{ "index.js": "" }, "index.handler", "Runtime.HandlerNotFound", /not exported/],
    [{ "index.js": "exports.handler = 5" }, "index.handler", "Runtime.HandlerNotFound", /not a function/],
    [{ "index.js": "(" }, "index.handler", "Runtime.UserCodeSyntaxError", /SyntaxError/],
    [{ "index.mjs": "import 'absent'" }, "index.handler", "Runtime.ImportModuleError", /absent/],
    [{ "index.js": "require('absent')" }, "index.handler", "Runtime.ImportModuleError", /absent/],
    [{ "index.js": "throw new RangeError('early')" }, "index.handler", "RangeError", /early/],
    [{ "index.js": "" }, "index", "Runtime.MalformedHandlerName", /index/],
  ]) {
    const instance = await start(t, directory(t, files), handler);
    const error = await instance.initError;
    assert.strictEqual(error.errorType, type);
    assert.match(error.errorMessage, message);
    assert.strictEqual(await instance.ended, 1);
  }
});

test("lines of the console have time, request and level", async (t) => {
  const source = `exports.handler = async () => {
    console.log("a %d", 5, { b: 1 }); console.error(new Error("c").message); console.debug("d") }`;
  const instance = await start(t, directory(t, { "index.js": source }), "index.handler");
  await instance.invoke(1);
  await instance.invoke(1);
  const lines = (await instance.lines(6)).map((line) => line.split("\t").slice(1).join(" "));
  const due = (id) => [`${id} INFO a 5 { b: 1 }`, `${id} ERROR c`, `${id} DEBUG d`];
  assert.deepStrictEqual(lines, [...due("id-1"), ...due("id-2")]);
});
