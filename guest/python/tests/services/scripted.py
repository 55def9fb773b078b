"""A server that behaves as the name of a table says: it fails, closes, echoes, streams.

python scripted.py PORT
"""

import binascii
import json
import struct
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# Fields that a client adds for its own connection, or that name it.
OWN_FIELDS = {"accept-encoding", "authorization", "host", "user-agent", "x-amz-date"}
OWN_FIELDS |= {"amz-sdk-invocation-id", "amz-sdk-request", "connection"}
WAIT_SECONDS_MAX = 30


def event(name, payload):
    """A message of an event stream."""
    headers = b""
    fields = {":event-type": name, ":content-type": "application/json", ":message-type": "event"}
    for key, value in fields.items():
        headers += struct.pack("!B", len(key)) + key.encode() + b"\x07"
        headers += struct.pack("!H", len(value)) + value.encode()
    prelude = struct.pack("!II", 16 + len(headers) + len(payload), len(headers))
    prelude += struct.pack("!I", binascii.crc32(prelude))
    message = prelude + headers + payload
    return message + struct.pack("!I", binascii.crc32(message))


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    attempts = {}
    released = threading.Event()

    def do_POST(self):
        """DynamoDB's items by the table's name; Bedrock's models by the path."""
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.path == "/reset":
            self.attempts.clear()
            self.released.clear()
            return self.answer(200, {})
        if self.path.startswith("/model/"):
            return self.model(body)
        table = json.loads(body)["TableName"]
        count = self.attempts[table] = self.attempts.get(table, 0) + 1
        kind, _, number = table.partition("-")
        if kind == "fails" and count <= int(number):
            return self.answer(500, {"__type": "InternalServerError", "message": "not now"})
        if kind == "closes" and count <= int(number):
            self.close_connection = True
            return None
        if kind == "throttles":
            error = "com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException"
            return self.answer(400, {"__type": error, "message": "too fast"})
        if kind == "redirects":
            return self.answer(307, {}, location="http://169.254.169.254/latest/meta-data/")
        if kind == "garbles":
            return self.raw(200, b"{")
        if kind == "echoes":
            names = sorted(name.lower() for name in self.headers)
            seen = {
                "method": self.command,
                "path": self.path,
                "fields": {n: self.headers[n] for n in names if n not in OWN_FIELDS},
                "signed": "authorization" in names,
                "body": body.decode(),
            }
            return self.answer(200, {"Item": {"seen": {"S": json.dumps(seen)}}})
        return self.answer(200, {"Item": {"attempts": {"N": str(count)}}})

    def model(self, body):
        """A stream whose second event comes after another call, or that call."""
        if self.path.endswith("/invoke"):
            self.released.set()
            return self.raw(200, body)
        self.send_response(200)
        self.send_header("content-type", "application/vnd.amazon.eventstream")
        self.send_header("x-amzn-bedrock-content-type", "application/json")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for text in ("first", "second"):
            payload = json.dumps({"bytes": binascii.b2a_base64(text.encode()).decode().strip()})
            message = event("chunk", payload.encode())
            self.wfile.write(b"%x\r\n%s\r\n" % (len(message), message))
            self.wfile.flush()
            if text == "first" and not self.released.wait(WAIT_SECONDS_MAX):
                self.close_connection = True
                return  # the stream breaks off: nobody has called
        self.wfile.write(b"0\r\n\r\n")

    def answer(self, status, content, **fields):
        """JSON."""
        self.raw(status, json.dumps(content).encode(), **fields)

    def raw(self, status, body, **fields):
        """Bytes."""
        self.send_response(status)
        for name, value in fields.items():
            self.send_header(name, value)
        self.send_header("content-type", "application/x-amz-json-1.0")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Nothing."""


class Server(ThreadingHTTPServer):
    """The server."""

    daemon_threads = True


if __name__ == "__main__":
    Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
