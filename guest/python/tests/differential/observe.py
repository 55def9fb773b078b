"""Values as JSON that can be compared; what differs by nature is left out by these lists, only."""

import datetime
import hashlib
import re

# Made anew by the server for each request or upload, or its time of day.
VARYING = {
    "RequestId",
    "RequestID",
    "HostId",
    "HostID",
    "UploadId",
    "VersionId",
    "VersionIdMarker",
    "NextVersionIdMarker",
    "NextUploadIdMarker",
    "CopySourceVersionId",
    "DeleteMarkerVersionId",
    "NextContinuationToken",
    "ContinuationToken",
    "NextToken",
    "LastModified",
    "CreationDate",
    "Initiated",
    "date",
    "last-modified",
    "x-amzn-requestid",
    "x-amz-request-id",
    "x-amz-id-2",
    "x-amz-version-id",
    "x-amz-copy-source-version-id",
    "AWSAccessKeyId",
    "signature",
    "policy",
    "x-amz-date",
    "x-amz-signature",
    "x-amz-credential",
    # moto gives it back: a hash of the body, or how the body was sent in its place.
    "x-amz-content-sha256",
}
ADDRESS = re.compile("0x[0-9a-f]{6,}")  # of an object, in its representation
SHORT = 64


def observe(value, key=None):
    """JSON of a value; types that JSON mixes up are kept apart."""
    if key in VARYING and value is not None:
        return {"varying": type(value).__name__}
    if isinstance(value, str):
        return ADDRESS.sub("0x", value)
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return {"float": repr(value)}
    if isinstance(value, (bytes, bytearray, memoryview)):
        data = bytes(value)
        if len(data) <= SHORT:
            return {"bytes": data.decode("latin-1")}
        return {"sha256": hashlib.sha256(data).hexdigest(), "length": len(data)}
    if isinstance(value, datetime.datetime):
        utc = value.astimezone(datetime.timezone.utc)
        return {"instant": utc.isoformat(), "aware": value.tzinfo is not None}
    if isinstance(value, dict):
        if value.get("content-type") == "application/xml":
            # Its text has ids that the server made.
            value = dict(value, **{"content-length": {"varying": "length"}})
        return {str(k): observe(v, k) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [observe(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(observe(item) for item in value)
    if isinstance(value, BaseException):
        return exception(value)
    return {"object": type(value).__name__}


def exception(error):
    """What a function can see of an exception."""
    out = {
        "type": type(error).__name__,
        "text": observe(str(error)),
        "bases": [kind.__name__ for kind in type(error).__mro__[1:]],
    }
    for name in ("response", "operation_name", "last_response", "kwargs"):
        if hasattr(error, name):
            out[name] = observe(getattr(error, name))
    return out
