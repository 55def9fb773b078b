// Gives the endpoints of AWS_ENDPOINT_URL_SERVICE to AWS's SDK 2 for JavaScript, which knows no such
// variables: `NODE_OPTIONS=--require=…/endpoints.cjs serverless deploy`.
'use strict';

const Module = require('module');

const load = Module._load;
const done = new WeakSet();

function configure(sdk) {
    if (!sdk || !sdk.config || typeof sdk.config.update !== 'function' || done.has(sdk)) return;
    done.add(sdk);
    for (const service of ['cloudformation', 'lambda', 's3', 'sts']) {
        const endpoint = process.env[`AWS_ENDPOINT_URL_${service.toUpperCase()}`];
        if (endpoint) sdk.config[service] = { endpoint, s3ForcePathStyle: true };
    }
}

Module._load = function (request, ...rest) {
    const found = load.call(this, request, ...rest);
    if (/(^|\/)aws-sdk($|\/lib\/(core|aws)$)/.test(request)) configure(found);
    return found;
};
