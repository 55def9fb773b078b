// Gives the endpoints of AWS_ENDPOINT_URL_SERVICE to AWS's SDK 2 for JavaScript, which knows no such
// variables: `NODE_OPTIONS=--require=…/endpoints.cjs serverless deploy`. A service without one is denied
// here, so no request leaves for AWS: the framework takes that for a service that the user may not use.
'use strict';

const Module = require('module');

const load = Module._load;
const done = new WeakSet();

// AWS_ENDPOINT_URL_CLOUDWATCH_LOGS, as AWS's other SDKs have it.
function variable(service) {
    return `AWS_ENDPOINT_URL_${service.toUpperCase().replace(/[ -]/g, '_')}`;
}

function configure(sdk) {
    if (!sdk || !sdk.config || typeof sdk.config.update !== 'function' || done.has(sdk)) return;
    done.add(sdk);
    for (const service of ['cloudformation', 'lambda', 's3', 'sts']) {
        const endpoint = process.env[variable(service)];
        if (endpoint) sdk.config[service] = { endpoint, s3ForcePathStyle: true };
    }
    sdk.events.on('validate', (request) => {
        const name = variable(request.service.api.serviceId);
        if (process.env[name]) return;
        const error = new Error(`${request.operation}: there is no ${name}; the gateway may not have it`);
        throw Object.assign(error, { code: 'AccessDeniedException', statusCode: 403 });
    });
}

Module._load = function (request, ...rest) {
    const found = load.call(this, request, ...rest);
    if (/(^|\/)aws-sdk($|\/lib\/(core|aws)$)/.test(request)) configure(found);
    return found;
};
