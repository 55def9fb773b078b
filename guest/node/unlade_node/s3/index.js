// The exports of `@aws-sdk/client-s3`: classes of the stub, and the SDK's own for all else, loaded
// at their first use.
"use strict";

const { clientClass } = require("./client");
const { commandClass } = require("./command");
const errors = require("./errors");
const { SDK } = require("./marks");
const names = require("./names");
const { paginator } = require("./paginate");

// Stands for an export of the SDK until it is used; `target` is of its kind: a list, or a function.
function lazily(load, target) {
  const forward = {};
  for (const trap of Object.getOwnPropertyNames(Reflect)) {
    forward[trap] = (_, ...rest) => Reflect[trap](load(), ...rest);
  }
  forward.construct = (_, values) => Reflect.construct(load(), values);
  return new Proxy(target, forward);
}

// A function that can be constructed and has no prototype of its own, which a proxy would have to
// show.
const anyFunction = () => function any() {}.bind(undefined);

// The SDK's functions take `{ client }` first.
function withClient(load) {
  return (config, ...others) => {
    const client = config?.client?.[SDK] ?? config?.client;
    return load()({ ...config, client }, ...others);
  };
}

const lower = (name) => name.charAt(0).toLowerCase() + name.slice(1);

// The class with a method for each operation.
function aggregated(Client, get) {
  class S3 extends Client {}
  const method = (name, value) => {
    Object.defineProperty(S3.prototype, name, { value, writable: true, configurable: true });
  };
  for (const operation of names.commands) {
    method(lower(operation), function call(input, options, callback) {
      return this.send(new (get(`${operation}Command`))(input), options, callback);
    });
  }
  for (const name of names.functions) {
    method(name, function call(input, config) {
      const isPaginator = name.startsWith("paginate");
      const given = typeof config === "object" ? config : { maxWaitTime: config };
      return get(name)({ ...(isPaginator ? config : given), client: this }, input ?? {});
    });
  }
  return S3;
}

// Schemas, which are lists.
let schemas;
function isSchema(name) {
  if (!/\$$|^errorTypeRegistries$/.test(name)) {
    return false;
  }
  schemas ??= new Set(require("./schemas"));
  return schemas.has(name);
}

// Names that tools look for in every module.
const ABSENT = new Set(["then", "default", "__esModule", "toJSON", "inspect", "constructor"]);

// The traps of the exports: each is made when it is asked for.
function traps(get, all) {
  const isThere = (name) => typeof name === "string" && !ABSENT.has(name) && get(name) !== undefined;
  return {
    get: (_, name) => (isThere(name) ? get(name) : undefined),
    has: (_, name) => isThere(name),
    ownKeys: all,
    getOwnPropertyDescriptor: (_, name) =>
      isThere(name)
        ? { value: get(name), enumerable: true, configurable: true, writable: true }
        : undefined,
  };
}

// The exports, for the SDK that `own` loads; `hasName` tells whether the SDK has a name that the
// tables do not have.
function create(own, hasName) {
  const commands = new Set(names.commands);
  const functions = new Set(names.functions);
  const enumerations = new Set(names.enumerations);
  const classNames = new Set(names.classes);
  const errorOf = (name) => (Object.hasOwn(names.errors, name) ? get(name) : undefined);
  const Client = clientClass(own, errorOf, () => exported);
  const make = (name) => {
    if (name === "S3Client") return Client;
    if (name === "S3") return aggregated(Client, get);
    if (name === "S3ServiceException") return errors.S3ServiceException;
    if (Object.hasOwn(names.errors, name)) return errors.errorClass(name, names.errors[name]);
    if (enumerations.has(name)) return require("./enumerations")[name];
    const operation = name.endsWith("Command") ? name.slice(0, -"Command".length) : "";
    if (commands.has(operation)) return commandClass(operation, own);
    const load = () => own()[name];
    if (functions.has(name)) {
      return paginator(name, (one) => get(`${one}Command`), Client) ?? withClient(load);
    }
    if (isSchema(name)) return lazily(load, []);
    return classNames.has(name) || hasName(name) ? lazily(load, anyFunction()) : undefined;
  };
  const made = new Map();
  const get = (name) => {
    if (!made.has(name)) {
      made.set(name, make(name));
    }
    return made.get(name);
  };
  const all = () => [
    "S3Client",
    "S3",
    "S3ServiceException",
    ...Object.keys(names.errors),
    ...names.commands.map((operation) => `${operation}Command`),
    ...functions,
    ...enumerations,
    ...require("./schemas"),
    ...classNames,
  ];
  const exported = new Proxy({}, traps(get, all));
  return exported;
}

module.exports = { create };
