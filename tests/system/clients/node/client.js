// Sends requests by node:http with an agent that keeps connections, compares every body with the object
// on disk, and prints the numbers of connections and of requests.
//
//   node client.js BASE OBJECTS REQUESTS PARALLEL NAME...
'use strict';

const { readFileSync } = require('node:fs');
const http = require('node:http');
const { join } = require('node:path');

const [base, objects, requests, parallel, ...names] = process.argv.slice(2);
const agent = new http.Agent({ keepAlive: true, maxSockets: Number(parallel) });
const sockets = new Set();

function get(name) {
  return new Promise((resolve, reject) => {
    const request = http.get(`${base}/${name}`, { agent, timeout: 30000 }, (response) => {
      const chunks = [];
      response.on('data', (chunk) => chunks.push(chunk));
      response.on('end', () => resolve({ status: response.statusCode, body: Buffer.concat(chunks) }));
      response.on('error', reject);
    });
    request.on('socket', (socket) => sockets.add(socket));
    request.on('timeout', () => request.destroy(new Error('timed out')));
    request.on('error', reject);
  });
}

async function worker(number) {
  for (let at = 0; at < Number(requests); at++) {
    const name = names[(number + at) % names.length];
    const { status, body } = await get(name);
    if (status !== 200 || !body.equals(readFileSync(join(objects, name)))) {
      throw new Error(`request ${at} of ${number}, ${name}: ${status}, ${body.length} bytes`);
    }
  }
}

Promise.all(Array.from({ length: Number(parallel) }, (_, number) => worker(number))).then(
  () => {
    agent.destroy();
    console.log(`connections ${sockets.size} requests ${requests * parallel}`);
  },
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
