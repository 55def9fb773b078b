// Pages of lists.
"use strict";

const PAGED = {
  paginateListObjectsV2: ["ListObjectsV2", "ContinuationToken", "NextContinuationToken", "MaxKeys"],
  paginateListParts: ["ListParts", "PartNumberMarker", "NextPartNumberMarker", "MaxParts"],
};

// The paginator of a name, or undefined; `command` gives the class of an operation's commands, and
// `Client` is the class of clients.
function paginator(name, command, Client) {
  if (!(name in PAGED)) {
    return undefined;
  }
  const [operation, token, nextToken, size] = PAGED[name];
  return async function* pages(config, input, ...others) {
    const { client, pageSize, startingToken, stopOnSameToken } = config;
    const withCommand = config.withCommand ?? ((one) => one);
    let next = startingToken ?? input[token];
    do {
      input[token] = next;
      input[size] = input[size] ?? pageSize;
      if (!(client instanceof Client)) {
        throw new Error(`Invalid client, expected instance of ${Client.name}`);
      }
      const made = new (command(operation))(input);
      const page = await client.send(withCommand(made) ?? made, ...others);
      yield page;
      const before = next;
      next = page[nextToken];
      if (stopOnSameToken && next === before) {
        return;
      }
    } while (next);
  };
}

module.exports = { paginator };
