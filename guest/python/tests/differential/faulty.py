"""A store that fails as its keys say: `503x2` is SlowDown twice, then what was put there."""

import re
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PLAN = re.compile(r"/(\w+?)x(\d+)$")
BODIES = {
    "500": (500, "InternalError"),
    "502": (502, "BadGateway"),
    "503": (503, "SlowDown"),
    "504": (504, "GatewayTimeout"),
    "429": (429, "TooManyRequests"),
    "throttled": (400, "Throttling"),
    "timeout": (400, "RequestTimeout"),
    "skewed": (403, "RequestTimeTooSkewed"),
    "denied": (403, "AccessDenied"),
    "plain": (503, None),
}
CUT_BYTES = 1000


def dechunked(data):
    """The data of chunks."""
    out, at = b"", 0
    while True:
        end = data.index(b"\r\n", at)
        length = int(data[at:end].partition(b";")[0], 16)
        if not length:
            return out
        out += data[end + 2 : end + 2 + length]
        at = end + 2 + length + 2


class Answers(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        """Says nothing."""

    def _serve(self):
        path = self.path.partition("?")[0]
        found = PLAN.search(path)
        fails = found and self.server.store.fails(path, self.command, int(found.group(2)))
        if fails and found.group(1).startswith("mid"):
            return self._stop(found.group(1)[3:])
        body = self._body()
        if path.count("/") < 2 or path.endswith("/"):
            return self._answer(200, b"")
        if fails:
            return self._fail(found.group(1))
        objects = self.server.store.objects
        if self.command == "PUT":
            objects[path] = body
            return self._answer(200, b"")
        if self.command == "DELETE":
            objects.pop(path, None)
            return self._answer(204, b"")
        data = objects.get(path, b"hello" if found else None)
        if data is None:
            return self._error(404, "NoSuchKey")
        return self._answer(200, data)

    def _stop(self, kind):
        """Answers, or hangs up, in the middle of a body."""
        self.rfile.read(min(CUT_BYTES, int(self.headers.get("content-length") or 0)))
        self.close_connection = True
        if kind != "hang":
            self._error(*BODIES[kind])
            # What is not read would reset the connection, and take the answer along.
            self.connection.shutdown(socket.SHUT_WR)
            while self.rfile.read1(1 << 16):
                pass

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _serve

    def _body(self):
        if "chunked" in self.headers.get("transfer-encoding", ""):
            data = b""
            while True:
                length = int(self.rfile.readline().partition(b";")[0], 16)
                data += self.rfile.read(length)
                self.rfile.readline()
                if not length:
                    break
        else:
            data = self.rfile.read(int(self.headers.get("content-length") or 0))
        if "aws-chunked" in self.headers.get("content-encoding", ""):
            data = dechunked(data)
        return data

    def _fail(self, kind):
        if kind == "hang":
            self.close_connection = True
            return
        if kind == "cut":
            # A body that ends too early.
            data = self.server.store.objects.get(self.path, b"")
            self._head(200, len(data))
            self.wfile.write(data[:CUT_BYTES])
            self.close_connection = True
            return
        self._error(*BODIES[kind])

    def _error(self, status, code):
        if code is None:
            return self._answer(status, b"")
        text = "<?xml version='1.0'?><Error><Code>%s</Code><Message>no</Message></Error>" % code
        self._answer(status, text.encode(), "application/xml")

    def _head(self, status, length, kind="binary/octet-stream"):
        self.send_response(status)
        self.send_header("content-length", str(length))
        self.send_header("content-type", kind)
        self.send_header("etag", '"5d41402abc4b2a76b9719d911017c592"')
        self.end_headers()

    def _answer(self, status, data, kind="binary/octet-stream"):
        self._head(status, len(data), kind)
        if self.command != "HEAD":
            self.wfile.write(data)


class Server(ThreadingHTTPServer):
    """Threads end with their connections; the process does not wait for them."""

    daemon_threads = True
    disable_nagle_algorithm = True


class Faulty:
    """The store."""

    def __init__(self):
        self.server = Server(("127.0.0.1", 0), Answers)
        self.server.store = self
        self.endpoint = "http://127.0.0.1:%d" % self.server.server_address[1]
        self.lock = threading.Lock()
        self.reset()
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def reset(self):
        """Forgets everything."""
        self.objects = {}
        self.asked = {}

    @staticmethod
    def lacks(_):
        """It has what its cases ask for."""
        return False

    def fails(self, path, method, times):
        """Whether this request is one of the first `times`."""
        with self.lock:
            count = self.asked[path, method] = self.asked.get((path, method), 0) + 1
        return count <= times

    def close(self):
        """Ends it."""
        self.server.shutdown()
        self.server.server_close()
