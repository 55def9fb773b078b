// Commands: an operation and its parameters. A command whose middleware is asked for is the SDK's.
"use strict";

const { OPERATION, SDK } = require("./marks");

// Makes the class of an operation's commands; `own` loads the function's SDK.
function commandClass(operation, own) {
  const name = `${operation}Command`;
  return {
    [name]: class {
      #real;

      constructor(input) {
        this.input = input ?? {};
      }

      get [OPERATION]() {
        return this.#real ? undefined : operation;
      }

      // The SDK's command with the same parameters.
      get [SDK]() {
        this.#real ??= new (own()[name])(this.input);
        this.#real.input = this.input;
        return this.#real;
      }

      get middlewareStack() {
        return this[SDK].middlewareStack;
      }

      get schema() {
        return this[SDK].schema;
      }

      resolveMiddleware(stack, config, options) {
        return this[SDK].resolveMiddleware(stack, config, options);
      }

      static getEndpointParameterInstructions() {
        return own()[name].getEndpointParameterInstructions();
      }
    },
  }[name];
}

module.exports = { commandClass };
