"""A handler of Lambda for a server of gRPC, whose file stays as it is: Lambda takes gRPC's place.

The server's own `serve()` runs, on a server that has no socket. An event is a request of the server's
one method, the answer its reply, both in the JSON of protocol buffers. Calls to other servers are
invocations of functions, which are named as the host of the address.

Event: `request`; `fetch`, from names in the working directory, which is empty otherwise and below
/tmp, to a bucket and a key; `keep`, the same for files that are there afterwards.
Environment: `SERVER`, the module; `ARGUMENTS`, its command line.
"""

import contextlib
import importlib
import json
import os
import shlex
import sys
import tempfile
import types

import boto3
import grpc
from google.protobuf import json_format, symbol_database

# Packages of a private repository for transfers of type XDT. Nothing is called in them: another
# type of transfer would fail for the absent name.
PRIVATE = ("destination", "source", "utils")


class Server:
    """Takes what a server has registered; a server of gRPC without a socket."""

    def __init__(self, pool, **options):
        self.handlers = []

    def add_generic_rpc_handlers(self, handlers):
        """Handlers of a service each."""
        self.handlers += handlers

    def add_insecure_port(self, address):
        """No port is opened."""
        return 1

    def start(self):
        """This is the server that events go to."""
        Server.started = self

    def wait_for_termination(self):
        """Returns at once: events come from Lambda."""

    def method(self):
        """The path and the handler of the one method, beside reflection's."""
        for service in self.handlers:
            if service.service_name().startswith("grpc."):
                continue
            for each in _descriptor(service.service_name()).methods:
                path = "/%s/%s" % (service.service_name(), each.name)
                found = service.service(types.SimpleNamespace(method=path, invocation_metadata=()))
                return path, found
        raise LookupError("the server has registered no method")


class Channel:
    """Calls of stubs, as invocations of a function."""

    def __init__(self, address, options=None):
        self._function = address.rpartition(":")[0]

    def unary_unary(self, path, request_serializer, response_deserializer, **options):
        """A method, whose call waits for the reply."""
        _, service, name = path.split("/")
        reply_type = _message(_descriptor(service).methods_by_name[name].output_type)

        def call(request, **more):
            payload = json.dumps({"request": _json(request)})
            got = boto3.client("lambda").invoke(FunctionName=self._function, Payload=payload)
            answer = json.loads(got["Payload"].read())
            if "FunctionError" in got:
                raise RuntimeError("%s: %s" % (self._function, answer))
            reply = json_format.ParseDict(answer, reply_type(), ignore_unknown_fields=True)
            return response_deserializer(reply.SerializeToString())

        return call


def _descriptor(service):
    return symbol_database.Default().pool.FindServiceByName(service)


def _message(descriptor):
    return symbol_database.Default().GetPrototype(descriptor)


def _json(message):
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


def _served():
    """Imports the server's module, and runs its `serve`; its method's path and handler."""
    for name in PRIVATE:
        sys.modules.setdefault(name, types.ModuleType(name))
    grpc.server, grpc.insecure_channel = Server, Channel
    name = os.environ["SERVER"]
    sys.argv = [name + ".py", *shlex.split(os.environ.get("ARGUMENTS", ""))]
    importlib.import_module(name).serve()
    return Server.started.method()


@contextlib.contextmanager
def _directory():
    """A new working directory, until the invocation ends."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        try:
            yield
        finally:
            os.chdir(before)


PATH, METHOD = _served()
S3 = boto3.client("s3")


def handler(event, context):
    """Lambda's entry."""
    _, service, name = PATH.split("/")
    request = _message(_descriptor(service).methods_by_name[name].input_type)()
    json_format.ParseDict(event["request"], request)
    with _directory():
        for file, (bucket, key) in event.get("fetch", {}).items():
            S3.download_file(bucket, key, file)
        sent = METHOD.request_deserializer(request.SerializeToString())
        reply = METHOD.unary_unary(sent, None)
        for file, (bucket, key) in event.get("keep", {}).items():
            S3.upload_file(file, bucket, key)
    return _json(reply)
