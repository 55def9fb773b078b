// Keys that a function's code puts into the environment: the stub has none, so its clients are the SDK's
// then, which signs with them, and the endpoint refuses what is signed with keys of the function's own.
"use strict";

const NAMES = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"];
// This file is loaded before the function.
const atStart = NAMES.map((name) => process.env[name]);

// True if the environment has the keys with which the instance has started.
exports.areThoseOfTheStart = () => NAMES.every((name, at) => process.env[name] === atStart[at]);
