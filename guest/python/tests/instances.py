"""A host in this process, and instances that it serves."""

import json
import os
import socket
import subprocess
import sys
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.dirname(HERE)
sys.path.insert(0, HERE)
sys.path.insert(0, PACKAGE)

import host  # noqa: E402


class Store:
    """A few operations on objects in memory."""

    def __init__(self):
        self.objects = {}
        self.calls = []

    def __call__(self, service, operation, parameters, body, region):
        self.calls.append((service, operation, parameters))
        key = parameters.get("Key")
        if operation == "PutObject":
            self.objects[key] = body or b""
            return host.Outcome(0, {"result": {"ETag": '"x"'}, "http_status": 200})
        if operation == "GetObject":
            return self.get(key)
        if operation == "ListObjectsV2":
            found = [{"Key": key, "Size": len(data)} for key, data in self.objects.items()]
            meta = {"result": {"Contents": found, "IsTruncated": False}, "http_status": 200}
            return host.Outcome(0, meta)
        if operation in ("Timeout", "HeadObject"):
            return host.Outcome(2, {"error": {"Code": "Timeout", "Message": "too slow"}})
        return host.Outcome(2, {"error": {"Code": "Unsupported", "Message": "not here"}})

    def request(self, head, body):
        """A request to another service: one item of DynamoDB, whatever is asked for."""
        import io

        self.calls.append((head["service"], head["operation"], head))
        if head["service"] != "dynamodb":
            return host.Outcome(2, {"error": {"Code": "Unsupported", "Message": "not here"}})
        asked = json.loads(body)
        answer = json.dumps({"Item": {"id": asked["Key"]["id"], "n": {"N": "5"}}}).encode()
        headers = [["content-type", "application/x-amz-json-1.0"]]
        meta = {"http_status": 200, "headers": headers}
        return host.Outcome(0, meta, io.BytesIO(answer), len(answer))

    def get(self, key):
        import io

        if key not in self.objects:
            error = {"Code": "NoSuchKey", "Message": "none", "Key": key}
            meta = {"error": error, "operation": "GetObject", "http_status": 404}
            return host.Outcome(1, meta)
        data = self.objects[key]
        meta = {
            "result": {"ContentLength": len(data)},
            "headers": {"content-length": str(len(data))},
            "http_status": 200,
        }
        return host.Outcome(0, meta, io.BytesIO(data), len(data))


class Served:
    """A session of the host and the guest's end of its channel."""

    def __init__(self, store, **limits):
        self.guest_end, host_end = socket.socketpair()
        self.session = host.Session(host_end, store, **limits)
        self.thread = threading.Thread(target=self.session.run, daemon=True)
        self.thread.start()

    def close(self):
        self.guest_end.close()
        try:
            self.session.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the session has closed it
        self.thread.join(10)


def environment(**more):
    """Where the package is, and nothing of AWS."""
    out = {n: v for n, v in os.environ.items() if not n.startswith(("AWS_", "UNLADE_"))}
    return dict(out, PYTHONPATH=PACKAGE, **more)


def run_guest(served, code, cwd=None, python=(sys.executable,), **more):
    """Runs Python code in a process that has the channel; its standard output."""
    descriptor = served.guest_end.fileno()
    done = subprocess.run(
        [*python, "-c", "from unlade_guest import finder; finder.install()\n" + code],
        pass_fds=[descriptor],
        env=environment(UNLADE_CHANNEL_FD=str(descriptor), **more),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
