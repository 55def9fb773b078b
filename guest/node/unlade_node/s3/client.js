// The client. It makes the calls that the stub knows; for anything else it turns, for the rest of
// its life, into the function's own SDK.
"use strict";

const { decode } = require("./response");
const { encode, isKnown } = require("./request");
const { ATTEMPTS, BUDGET, repeat } = require("./retry");
const { EXPORTS, OPERATION, PLACE, SDK } = require("./marks");
const transport = require("./transport");

// Members of a configuration that the stub understands, by the values that it does.
const SETTINGS = {
  region: (value) => typeof value === "string",
  forcePathStyle: (value) => typeof value === "boolean",
  maxAttempts: (value) => Number.isInteger(value) && value > 0,
  retryMode: (value) => value === "standard",
  // The endpoint of the sandbox has one region.
  followRegionRedirects: (value) => value === false,
};
// Variables that change how the SDK works.
const VARIABLES = [
  "AWS_CONFIG_FILE", "AWS_MAX_ATTEMPTS", "AWS_PROFILE", "AWS_REQUEST_CHECKSUM_CALCULATION",
  "AWS_RESPONSE_CHECKSUM_VALIDATION", "AWS_RETRY_MODE", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS",
  "AWS_USE_DUALSTACK_ENDPOINT", "AWS_USE_FIPS_ENDPOINT",
];

// True if the stub can be the client of a configuration.
function isOurs(config) {
  return (
    transport.endpoint() !== undefined &&
    Boolean(config.region ?? process.env.AWS_REGION) &&
    !VARIABLES.some((name) => process.env[name]) &&
    Object.entries(config).every(([name, value]) => value === undefined || SETTINGS[name]?.(value))
  );
}

// Makes the class of clients. `own` loads the function's SDK, `errorOf` gives the class of an
// exception's name, `exported` the exports of the package.
function clientClass(own, errorOf, exported) {
  class S3Client {
    #given;
    #place;
    #region;
    #budget = { left: BUDGET };
    #real;

    constructor(config = {}) {
      this.#given = { ...config };
      if (!isOurs(this.#given)) {
        this.#real = this.#make();
        return;
      }
      this.#place = transport.endpoint();
      this.#region = config.region ?? process.env.AWS_REGION;
    }

    #make() {
      const Class = own().S3Client;
      return new Class(this.#given);
    }

    // The SDK's client with the same configuration; from now on it makes all calls.
    get [SDK]() {
      this.#real ??= this.#make();
      return this.#real;
    }

    // The address and the style of the stub's client; undefined if it is the SDK's.
    get [PLACE]() {
      return this.#real ? undefined : { ...this.#place, isPathStyle: this.#given.forcePathStyle };
    }

    get [EXPORTS]() {
      return exported();
    }

    get config() {
      return this[SDK].config;
    }

    get middlewareStack() {
      return this[SDK].middlewareStack;
    }

    get initConfig() {
      return this[SDK].initConfig;
    }

    send(command, optionsOrCallback, callback) {
      const isCallback = typeof optionsOrCallback === "function";
      const options = isCallback ? undefined : optionsOrCallback;
      const done = isCallback ? optionsOrCallback : callback;
      const result = this.#send(command, options);
      if (!done) {
        return result;
      }
      result.then((value) => done(null, value), (error) => done(error)).catch(() => {});
      return undefined;
    }

    async #send(command, options = {}) {
      const { abortSignal, ...others } = options;
      const operation = command?.[OPERATION];
      const isOwn = operation !== undefined && Object.keys(others).length === 0;
      if (this.#real || !isOwn || !isKnown(operation, command.input)) {
        return this[SDK].send(command?.[SDK] ?? command, options);
      }
      const request = encode(operation, command.input);
      const once = async () => {
        const response = await transport.attempt(this.#place, this.#region, request, abortSignal);
        return decode(operation, response, errorOf);
      };
      const most = this.#given.maxAttempts ?? ATTEMPTS;
      const isStream = request.stream !== undefined;
      return repeat(once, { budget: this.#budget, most, signal: abortSignal, isStream });
    }

    destroy() {
      if (this.#real) {
        this.#real.destroy();
      } else {
        transport.destroy();
      }
    }

    static [Symbol.hasInstance](value) {
      const isOwn = Function.prototype[Symbol.hasInstance].call(this, value);
      return isOwn || (this === S3Client && isSdkClient(value, S3Client));
    }
  }
  return S3Client;
}

// True for the SDK's own clients of S3.
function isSdkClient(value, Stub) {
  for (let at = value && Object.getPrototypeOf(value); at; at = Object.getPrototypeOf(at)) {
    if (at.constructor?.name === "S3Client" && at.constructor !== Stub) {
      return true;
    }
  }
  return false;
}

module.exports = { clientClass };
