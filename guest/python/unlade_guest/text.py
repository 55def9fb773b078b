"""JSON as the protocol has it: instants and bytes are objects with one `$` member.

The standard library's accelerator is used directly: the package around it loads `re`, which costs
more memory than all the rest of this package.
"""

from _datetime import datetime, timedelta, timezone
from binascii import a2b_base64, b2a_base64

UTC = timezone.utc


def instant(text):
    """The aware datetime of `2026-01-02T03:04:05.678Z`."""
    moment = datetime.fromisoformat(text[:19])
    if text[19:20] == ".":
        digits = text[20:].rstrip("Z")[:6]
        moment = moment + timedelta(microseconds=int(digits.ljust(6, "0")))
    return moment.replace(tzinfo=UTC)


def _special(members):
    """Turns `{"$instant": ...}` and `{"$octets": ...}` into values; of a name that is the
    service's own, the `$` in front of its `$` is the host's."""
    if len(members) != 1:
        return members
    ((name, value),) = members.items()
    if name[:2] == "$$":
        return {name[1:]: value}
    try:
        if name == "$instant":
            return instant(value)
        if name == "$octets":
            return a2b_base64(value)
    except (LookupError, TypeError, ValueError):
        pass  # it is neither
    return members


def _plain(value):
    """Encodes types that the JSON encoder does not support."""
    if isinstance(value, datetime):
        moment = value.astimezone(UTC)
        fraction = ".%06d" % moment.microsecond if moment.microsecond else ""
        return {"$instant": moment.strftime("%Y-%m-%dT%H:%M:%S") + fraction + "Z"}
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"$octets": b2a_base64(bytes(value), newline=False).decode()}
    raise TypeError("Object of type %s is not JSON serializable" % type(value).__name__)


def _refuse(value):
    raise TypeError("Object of type %s is not JSON serializable" % type(value).__name__)


class _Context:
    """The attributes that the JSON scanner reads."""

    strict = True
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    memo = None

    def __init__(self, hook):
        self.object_hook = hook
        self.memo = {}

    @staticmethod
    def parse_constant(name):
        return {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": -float("inf")}[name]


def _accelerated():
    import _json

    markers = None
    encoder = _json.make_encoder(
        markers, _plain, _json.encode_basestring_ascii, None, ":", ",", False, False, True
    )
    plain = _json.make_scanner(_Context(None))
    special = _json.make_scanner(_Context(_special))

    loose = _json.make_encoder(
        markers, _refuse, _json.encode_basestring_ascii, None, ": ", ", ", False, False, True
    )

    def encode(value):
        return "".join(encoder(value, 0))

    def decode(text):
        try:
            return (special if '"$' in text else plain)(text, 0)[0]
        except StopIteration:
            raise ValueError("the host sent something that is not JSON") from None

    def dumps(value):
        return "".join(loose(value, 0))

    def loads(text):
        stripped = text.strip(" \t\r\n")
        try:
            value, end = plain(stripped, 0)
        except StopIteration as error:
            raise ValueError("not JSON at byte %s" % error.value) from None
        if end != len(stripped):
            raise ValueError("not JSON behind byte %d" % end)
        return value

    return encode, decode, dumps, loads


def _portable():
    import json

    def encode(value):
        return json.dumps(value, default=_plain, separators=(",", ":"))

    def decode(text):
        return json.loads(text, object_hook=_special)

    return encode, decode, json.dumps, json.loads


try:
    encode, decode, dumps, loads = _accelerated()
    if decode(encode({"a": [1, "\u00e9", None, 1.5]})) != {"a": [1, "\u00e9", None, 1.5]}:
        raise ValueError("another accelerator than expected")
except (ImportError, AttributeError, TypeError, ValueError):
    encode, decode, dumps, loads = _portable()
