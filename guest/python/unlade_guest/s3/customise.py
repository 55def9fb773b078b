"""The SDK's changes to S3's request parameters."""

from ..errors import ParamValidationError
from .validate import instant_of

BUCKET_PATTERN = r"^[a-zA-Z0-9.\-_]{1,255}$"
ARN_PATTERN = (
    r"^arn:(aws).*:(s3|s3-object-lambda):[a-z\-0-9]*:[0-9]{12}:accesspoint[/:][a-zA-Z0-9\-.]{1,63}$|"
    r"^arn:(aws).*:s3-outposts:[a-z\-0-9]+:[0-9]{12}:outpost[/:][a-zA-Z0-9\-]{1,63}[/:]accesspoint"
    r"[/:][a-zA-Z0-9\-]{1,63}$"
)
BUCKET_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_")
UNRESERVED = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~/")
METADATA = ("CopyObject", "PutObject", "CreateMultipartUpload")
COPIES = ("CopyObject", "UploadPartCopy")


def before_check(operation, parameters):
    """Changes parameters before their types are validated."""
    if "Bucket" in parameters:
        _bucket(parameters["Bucket"])
    if operation in METADATA and parameters.get("Metadata"):
        _metadata(parameters["Metadata"])
    if operation in COPIES:
        source = parameters.get("CopySource")
        if isinstance(source, (str, dict)):
            parameters["CopySource"] = _copy_source(source)
    for prefix in ("SSECustomer", "CopySourceSSECustomer"):
        if parameters.get(prefix + "Key") is not None:
            _customer_key(parameters, prefix)


def _bucket(bucket):
    if not isinstance(bucket, str):
        raise TypeError("expected string or bytes-like object, got %r" % type(bucket).__name__)
    if 0 < len(bucket) < 256 and BUCKET_LETTERS.issuperset(bucket):
        return
    if bucket.startswith("arn:"):
        import re

        if re.search(ARN_PATTERN, bucket):
            return
    raise ParamValidationError(
        report='Invalid bucket name "%s": Bucket name must match the regex "%s" or be an ARN '
        'matching the regex "%s"' % (bucket, BUCKET_PATTERN, ARN_PATTERN)
    )


def _metadata(metadata):
    if not isinstance(metadata, dict):
        return
    for name, value in metadata.items():
        try:
            name.encode("ascii")
            value.encode("ascii")
        except UnicodeEncodeError:
            raise ParamValidationError(
                report='Non ascii characters found in S3 metadata for key "%s", value: "%s".  '
                "\nS3 metadata can only contain ASCII characters. " % (name, value)
            ) from None


def quote(text):
    """Percent-encodes everything but what may stand in a path."""
    data = text.encode()
    if UNRESERVED.issuperset(data):
        return text
    return "".join(chr(byte) if byte in UNRESERVED else "%%%02X" % byte for byte in data)


def _copy_source(source):
    if isinstance(source, str):
        path, mark, version = source.rpartition("?versionId=")
        if mark:
            return quote(path) + mark + version
        return quote(source)
    try:
        bucket, key = source["Bucket"], source["Key"]
    except KeyError as error:
        raise ParamValidationError(report="Missing required parameter: %s" % error) from None
    middle = "/object/" if bucket.startswith("arn:") else "/"
    text = quote(bucket + middle + key)
    if source.get("VersionId") is not None:
        text += "?versionId=" + source["VersionId"]
    return text


def _customer_key(parameters, prefix):
    if prefix + "KeyMD5" in parameters:
        return
    from binascii import b2a_base64
    from hashlib import md5

    key = parameters[prefix + "Key"]
    raw = key.encode() if isinstance(key, str) else key
    digest = md5(raw).digest()
    parameters[prefix + "Key"] = b2a_base64(raw, newline=False).decode()
    parameters[prefix + "KeyMD5"] = b2a_base64(digest, newline=False).decode()


def plain(parameters, shape):
    """A copy of checked parameters as the protocol writes them; the body is left out."""
    out = {}
    for name, value in parameters.items():
        # Not all are checked: a function can have that turned off.
        if name != shape.body and value is not None:
            out[name] = _plain(value, shape.members.get(name, "s")[0])
    return out


def _plain(value, kind):
    first = kind[0]
    if first == "t":
        return instant_of(value)
    if first == "{":
        from .shape import structure

        return plain(value, structure(kind[1:]))
    if first == "[":
        return [_plain(item, kind[1:]) for item in value]
    if first == "o" and isinstance(value, str):
        return value.encode()
    return value
