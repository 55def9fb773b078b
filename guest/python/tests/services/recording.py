"""A server that keeps what it is sent, and answers every request with an error of its protocol.

python recording.py PORT

`GET /recorded` gives the canonical texts of the requests since the last one, as a JSON list.
"""

import gzip
import hashlib
import json
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler

from scripted import Server

BODY_SHOWN_BYTES_MAX = 4096
# Fields of a connection and of a point in time, and those that a signer adds: the host has these.
OWN_FIELDS = {
    "amz-sdk-invocation-id",  # a random number of each call
    "authorization",  # what it says about region and service is compared
    "connection",
    "content-length",  # the body is compared, and the worker may send it in chunks
    "date",
    "host",
    "transfer-encoding",
    "x-amz-content-sha256",  # the signer's; the body is compared
    "x-amz-date",
    "x-amz-security-token",
}
UUID = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.I)
# Of the features that botocore names there, those of an endpoint that was given to it (N), of keys in
# the environment (g), of a compressed request (L): a function has none of them.
FEATURES = re.compile(r"(?<= m/)\S+")
OWN_FEATURES = {"L", "N", "g"}
SCOPE = re.compile(r"Credential=[^/]*/\d{8}/([^,\s]*)")
XML = (
    b"<ErrorResponse><Error><Type>Sender</Type><Code>Recorded</Code><Message/></Error>"
    b"<RequestId>r</RequestId></ErrorResponse>"
)


def features(found):
    """The features of a user agent without those of the endpoint and the keys."""
    return ",".join(sorted(set(found.group().split(",")) - OWN_FEATURES))


def canonical(method, target, headers, body):
    """The text of a request. Identities that botocore makes anew for each call are masked."""
    path, _, query = target.partition("?")
    lines = ["method: " + method, "path: " + path, "query: " + query]
    scope = SCOPE.search(headers.get("authorization", ""))
    lines.append("signed for: " + (scope.group(1) if scope else "none"))
    if headers.get("content-encoding") == "gzip":
        # The host has to read a request, and gets it as it was before.
        body = gzip.decompress(body)
        headers = {n: v for n, v in headers.items() if n != "content-encoding"}
    agent = headers.get("user-agent", "")
    headers = dict(headers, **{"user-agent": FEATURES.sub(features, agent)})
    lines += sorted("%s: %s" % (n, v) for n, v in headers.items() if n not in OWN_FIELDS)
    body = UUID.sub(b"<uuid>", body)
    lines.append("body: %d bytes, %s" % (len(body), hashlib.sha256(body).hexdigest()))
    return "\n".join(lines + [body[:BODY_SHOWN_BYTES_MAX].decode("latin-1")])


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    recorded = []
    lock = threading.Lock()

    def _record(self):
        headers = {}
        for name, value in self.headers.items():
            name = name.lower()
            headers[name] = "%s, %s" % (headers[name], value) if name in headers else value
        text = canonical(self.command, self.path, headers, self._body())
        with self.lock:
            self.recorded.append(text)
        # Of the protocols of the tables' services, botocore chooses these two.
        form, content = "application/x-amz-json-1.1", b'{"__type":"Recorded"}'
        if headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
            form, content = "text/xml", XML
        digest = hashlib.sha256(text.encode()).hexdigest()
        self._answer(400, form, content, {"x-recorded": digest})

    def _body(self):
        if "chunked" not in self.headers.get("transfer-encoding", ""):
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        body = b""
        while True:
            length = int(self.rfile.readline().split(b";")[0], 16)
            body += self.rfile.read(length)
            self.rfile.readline()
            if not length:
                return body

    def do_GET(self):
        """A request, or what was recorded."""
        if self.path != "/recorded":
            return self._record()
        with self.lock:
            content = json.dumps(self.recorded).encode()
            self.recorded.clear()
        self._answer(200, "application/json", content, {})

    do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = _record

    def _answer(self, status, form, content, fields):
        self.send_response(status)
        for name, value in fields.items():
            self.send_header(name, value)
        self.send_header("content-type", form)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        """Nothing."""


if __name__ == "__main__":
    Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
