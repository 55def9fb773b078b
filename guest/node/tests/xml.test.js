// Documents: what is written is read back, and a damaged document ends in an error. The seed of a
// run is printed; SEED repeats it.
"use strict";

const assert = require("node:assert");
const { test } = require("node:test");
const xml = require("../unlade_node/s3/xml");
const shapes = require("../unlade_node/s3/shapes");

const CASES = 2000;
const seed = Number(process.env.SEED ?? Date.now() % 1_000_000);

// Numbers of a linear congruence: the same for the same seed.
function random() {
  let state = seed >>> 0;
  return (below) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
}

const CHARS = ["a", "&", "<", ">", '"', "'", "\r", "\n", " ", "ü", "\u{1F600}", "]", "-", "/", "&amp;", "\t"];

function value(below, type) {
  if (Array.isArray(type)) {
    const [kind, inner] = type;
    if (kind === "shape") return structure(below, inner);
    return Array.from({ length: 1 + below(3) }, () => value(below, inner));
  }
  switch (type) {
    case "number":
      return below(1e9);
    case "boolean":
      return below(2) === 1;
    case "date":
    case "http-date":
      return new Date(below(2e9) * 1000);
    default:
      return Array.from({ length: below(8) }, () => CHARS[below(CHARS.length)]).join("");
  }
}

function structure(below, name) {
  const rows = Object.entries(shapes[name]()).filter(() => below(3) > 0);
  return Object.fromEntries(rows.map(([member, { type }]) => [member, value(below, type)]));
}

test(`documents are read back, seed ${seed}`, () => {
  const below = random();
  const names = Object.keys(shapes);
  for (let at = 0; at < CASES; at += 1) {
    const name = names[below(names.length)];
    const due = structure(below, name);
    const text = xml.document("Root", due, ["shape", name]);
    assert.deepStrictEqual(xml.valueOf([xml.parse(text)], ["shape", name]), due, text);
  }
});

test(`a damaged document is an error, and nothing else, seed ${seed}`, () => {
  const below = random();
  const names = Object.keys(shapes);
  let refused = 0;
  for (let at = 0; at < CASES; at += 1) {
    const name = names[below(names.length)];
    const text = xml.document("Root", structure(below, name), ["shape", name]);
    const begin = below(text.length);
    const changed = text.slice(0, begin) + CHARS[below(CHARS.length)] + text.slice(begin + below(9));
    try {
      xml.valueOf([xml.parse(changed)], ["shape", name]);
    } catch (error) {
      assert.ok(error instanceof SyntaxError, `${error.stack} ${changed}`);
      refused += 1;
    }
  }
  assert.ok(refused > CASES / 10, `${refused} were refused`);
});
