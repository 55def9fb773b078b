// Names of members that functions do not see.
"use strict";

module.exports = {
  // Of a client or a command: the SDK's own with the same settings, made when it is asked for.
  SDK: Symbol("sdk"),
  // Of a client: its address and style; undefined if it is the SDK's.
  PLACE: Symbol("place"),
  // Of a client: the exports of its package.
  EXPORTS: Symbol("exports"),
  // Of a command: its operation, or undefined if its middleware may have been changed.
  OPERATION: Symbol("operation"),
};
