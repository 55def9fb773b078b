"""The answer of SelectObjectContent: events, as the S3 API reference describes their bytes.

A message is its length and that of its header fields (4 bytes each, the highest first), the CRC32
of these, header fields, a payload, and the CRC32 of all. A field is a name with its length in one
byte, 7 (text), and a value with its length in two.
"""

from binascii import crc32

from ..errors import named

PRELUDE_BYTES = 12
MESSAGE_BYTES_MAX = 16 * 1024 * 1024
TEXT = 7
DETAILS = ("Stats", "Progress")


class EventStream:
    """Events as dictionaries, each with one name; `close` drops what was not read."""

    def __init__(self, raw_stream, operation_name):
        self._raw_stream = raw_stream
        self._operation_name = operation_name

    def __iter__(self):
        while True:
            prelude = self._exactly(PRELUDE_BYTES, True)
            if not prelude:
                return
            event = self._event(*self._message(prelude))
            if event:
                yield event

    def get_initial_response(self):
        """S3's streams begin with none."""
        raise named("EventStreamError")(
            {"Error": {"Code": "NoInitialResponse", "Message": "the stream has none"}},
            self._operation_name,
        )

    def close(self):
        """Discards unread data."""
        self._raw_stream.close()

    def _exactly(self, size, may_end=False):
        out = b""
        while len(out) < size:
            data = self._raw_stream.read(size - len(out))
            if not data:
                break
            out += data
        if len(out) < size and not (may_end and not out):
            self._broken("it ends within a message")
        return out

    def _broken(self, why):
        raise named("ResponseStreamingError")(error="events of the answer: " + why)

    def _message(self, prelude):
        """Header fields and payload."""
        length = int.from_bytes(prelude[:4], "big")
        head = int.from_bytes(prelude[4:8], "big")
        sum_of_prelude = int.from_bytes(prelude[8:], "big")
        if crc32(prelude[:8]) != sum_of_prelude:
            self._broken("the checksum of a prelude differs")
        if length > MESSAGE_BYTES_MAX or head + PRELUDE_BYTES + 4 > length:
            self._broken("lengths that cannot be")
        rest = self._exactly(length - PRELUDE_BYTES)
        if crc32(rest[:-4], crc32(prelude)) != int.from_bytes(rest[-4:], "big"):
            self._broken("the checksum of a message differs")
        return self._fields(rest[:head]), rest[head:-4]

    def _fields(self, data):
        out = {}
        at = 0
        while at < len(data):
            start = at + 1
            kind = start + data[at]
            value = kind + 3
            if value > len(data) or data[kind] != TEXT:
                self._broken("a header field that is no text")
            at = value + int.from_bytes(data[kind + 1 : value], "big")
            if at > len(data):
                self._broken("a header field is longer than the head")
            out[data[start:kind].decode()] = data[value:at].decode()
        return out

    def _event(self, fields, payload):
        kind = fields.get(":message-type")
        if kind in ("error", "exception"):
            code = fields.get(":error-code") or fields.get(":exception-type", "")
            error = {"Code": code, "Message": fields.get(":error-message", "")}
            raise named("EventStreamError")({"Error": error}, self._operation_name)
        name = fields.get(":event-type", "")
        if name == "Records":
            return {name: {"Payload": payload}}
        if name in DETAILS:
            return {name: {"Details": _numbers(payload.decode())}}
        if name in ("Cont", "End"):
            return {name: {}}
        return None


def _numbers(text):
    """The elements of a document that are whole numbers, by name."""
    out = {}
    for piece in text.split("</")[:-1]:
        start, _, value = piece.rpartition(">")
        if value.strip().isdigit():
            out[start.rpartition("<")[2]] = int(value)
    return out


EventStream.__module__ = "botocore.eventstream"
