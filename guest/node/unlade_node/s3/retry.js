// Repeated attempts, as in the SDK's standard mode.
"use strict";

const { aborted } = require("./transport");

const ATTEMPTS = 3;
const TRANSIENT_MS = 100;
const THROTTLED_MS = 500;
const DELAY_MS_MAX = 20_000;
// The budget of a client: an attempt takes some of it, a success gives some back.
const BUDGET = 500;
const COST = 5;
const TIMEOUT_COST = 10;
const GAIN = 1;

const TRANSIENT_STATUSES = [500, 502, 503, 504];
const TRANSIENT = [
  "ECONNRESET", "ECONNREFUSED", "EPIPE", "ETIMEDOUT",
  "EHOSTUNREACH", "ENETUNREACH", "ENOTFOUND", "EAI_AGAIN",
  "TimeoutError", "RequestTimeout", "RequestTimeoutException",
];
const THROTTLED = [
  "BandwidthLimitExceeded", "LimitExceededException", "PriorRequestNotComplete",
  "RequestLimitExceeded", "RequestThrottled", "RequestThrottledException", "SlowDown",
  "ThrottledException", "Throttling", "ThrottlingException", "TooManyRequestsException",
];

// "throttled", "transient", or undefined for errors that another attempt does not help.
function kind(error) {
  if (error.name === "AbortError") {
    return undefined;
  }
  const status = error.$metadata?.httpStatusCode;
  if (status === 429 || THROTTLED.includes(error.name)) {
    return "throttled";
  }
  const isTransient =
    TRANSIENT.includes(error.name) || TRANSIENT.includes(error.code) || TRANSIENT_STATUSES.includes(status);
  return isTransient ? "transient" : undefined;
}

function pause(delay_ms, signal) {
  return new Promise((resolve, reject) => {
    const abort = () => {
      clearTimeout(timer);
      reject(aborted(signal));
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", abort);
      resolve();
    }, delay_ms);
    signal?.addEventListener("abort", abort, { once: true });
  });
}

// Repeats `once` up to `most` times; `budget` is that of the client: `{ left }`. A streamed body
// is sent once.
async function repeat(once, { budget, most, signal, isStream }) {
  let delays_ms = 0;
  for (let count = 1; ; count += 1) {
    try {
      const result = await once();
      budget.left = Math.min(BUDGET, budget.left + (count > 1 ? COST : GAIN));
      Object.assign(result.$metadata, { attempts: count, totalRetryDelay: delays_ms });
      return result;
    } catch (error) {
      const found = kind(error);
      const cost = error.code === "ETIMEDOUT" ? TIMEOUT_COST : COST;
      if (isStream) {
        console.warn("An error was encountered in a non-retryable streaming request.");
        throw error;
      }
      if (!found || count >= most || budget.left < cost || signal?.aborted) {
        error.$metadata ??= {};
        Object.assign(error.$metadata, { attempts: count, totalRetryDelay: delays_ms });
        throw error;
      }
      budget.left -= cost;
      const base_ms = found === "throttled" ? THROTTLED_MS : TRANSIENT_MS;
      const delay_ms = Math.floor(Math.min(DELAY_MS_MAX, Math.random() * 2 ** (count - 1) * base_ms));
      delays_ms += delay_ms;
      await pause(delay_ms, signal);
    }
  }
}

module.exports = { ATTEMPTS, BUDGET, repeat };
