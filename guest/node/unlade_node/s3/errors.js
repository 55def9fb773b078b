// Exceptions with the names, members and identities of the SDK's.
"use strict";

const SHAPE = "com.amazonaws.s3#";

function isServiceException(value) {
  const isFault = value?.$fault === "client" || value?.$fault === "server";
  return isFault && Boolean(value.$metadata);
}

// The base of all exceptions of the service. `instanceof` accepts the SDK's own, too.
class S3ServiceException extends Error {
  constructor(options) {
    super(options.message);
    Object.setPrototypeOf(this, new.target.prototype);
    this.name = options.name;
    this.$fault = options.$fault;
    this.$metadata = options.$metadata;
    this.$retryable = undefined;
  }

  static isInstance(value) {
    return isServiceException(value);
  }

  static [Symbol.hasInstance](value) {
    if (!value) {
      return false;
    }
    if (Object.prototype.isPrototypeOf.call(this.prototype, value)) {
      return true;
    }
    if (!isServiceException(value)) {
      return false;
    }
    return this === S3ServiceException ? isOfService(value) : value.name === this.name;
  }
}

// True for exceptions of the SDK's S3 client, by the name of their class.
function isOfService(value) {
  for (let at = Object.getPrototypeOf(value); at; at = Object.getPrototypeOf(at)) {
    if (at.constructor?.name === "S3ServiceException") {
      return true;
    }
  }
  return false;
}

// The class of a name, for a row of the table of names.
function errorClass(name, { fault, members }) {
  return {
    [name]: class extends S3ServiceException {
      static shapeId = SHAPE + name;

      constructor(options) {
        super({ ...options, name, $fault: fault });
        for (const member of members) {
          this[member] = options[member];
        }
      }
    },
  }[name];
}

module.exports = { S3ServiceException, errorClass };
