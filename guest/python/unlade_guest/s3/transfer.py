"""Managed transfers: files and file-like objects up, down and across, large ones in parts.

There are no threads: a part is submitted while those before it are on their way, as many at once as
the configuration says. A download is one GET, whose bytes go from the host's slots to the file.
"""

import os
from _collections import deque

from .. import source
from ..boto_errors import RetriesExceededError, S3UploadFailedError
from ..errors import ClientError, ReadTimeoutError, ResponseStreamingError
from ..transfer_errors import RetriesExceededError as Exceeded, S3DownloadFailedError
from . import transfer_config as rules
from .transfer_config import MB, TransferConfig

PART_BYTES_MIN = 5 * MB
PART_BYTES_MAX = 5 * 1024 * MB
PARTS_MAX = 10_000
BROKEN = (ReadTimeoutError, ResponseStreamingError)


def upload_file(self, Filename, Bucket, Key, ExtraArgs=None, Callback=None, Config=None):
    """Uploads a file. S3UploadFailedError where the service refuses."""
    name = _filename(Filename)
    extra = _extra(ExtraArgs, rules.ALLOWED_UPLOAD_ARGS, checksum=True)
    size = os.path.getsize(name)
    with open(name, "rb") as file:
        try:
            _upload(self, file, size, Bucket, Key, extra, Callback, Config or TransferConfig())
        except ClientError as error:
            raise S3UploadFailedError(
                "Failed to upload %s to %s/%s: %s" % (name, Bucket, Key, error)
            ) from error


def upload_fileobj(self, Fileobj, Bucket, Key, ExtraArgs=None, Callback=None, Config=None):
    """Uploads what a file-like object has from where it stands."""
    if not hasattr(Fileobj, "read"):
        raise ValueError("Fileobj must implement read")
    extra = _extra(ExtraArgs, rules.ALLOWED_UPLOAD_ARGS, checksum=True)
    config = Config or TransferConfig()
    size = source.length_of(Fileobj)
    if size is None:
        _upload_unseekable(self, Fileobj, Bucket, Key, extra, Callback, config)
    else:
        _upload(self, Fileobj, size, Bucket, Key, extra, Callback, config)


def _filename(name):
    name = os.fspath(name) if isinstance(name, os.PathLike) else name
    if not isinstance(name, str):
        raise ValueError("Filename must be a string or a path-like object")
    return name


def _extra(given, allowed, checksum=False):
    extra = dict(given or {})
    rules.check(extra, allowed)
    if checksum and not any(name in extra for name in rules.CHECKSUMS):
        extra.setdefault("ChecksumAlgorithm", rules.CHECKSUM_DEFAULT)
    return extra


def _only(extra, names):
    return {name: value for name, value in extra.items() if name in names}


def _without(extra, names):
    return {name: value for name, value in extra.items() if name not in names}


def _upload(client, file, size, bucket, key, extra, callback, config):
    if size >= config.multipart_threshold:
        start = file.tell()
        part = part_bytes(config.multipart_chunksize, size)
        bodies = (
            source.File(file, min(part, size - at), callback, start + at)
            for at in range(0, size, part)
        )
        return _multipart(client, bodies, bucket, key, extra, config)
    parameters = dict(_without(extra, ("ChecksumType", "MpuObjectSize")), Bucket=bucket, Key=key)
    return client._result(client._start("PutObject", parameters, source.File(file, size, callback)))


def _upload_unseekable(client, file, bucket, key, extra, callback, config):
    first = _read(file, config.multipart_threshold)
    if len(first) < config.multipart_threshold:
        parameters = dict(
            _without(extra, ("ChecksumType", "MpuObjectSize")), Bucket=bucket, Key=key
        )
        client._result(client._start("PutObject", parameters, source.Octets(first)))
        if callback:
            callback(len(first))
        return
    part = part_bytes(config.multipart_chunksize)

    def bodies():
        data = first
        while data:
            while len(data) < part:
                more = _read(file, part - len(data))
                if not more:
                    break
                data += more
            yield source.Octets(data[:part])
            if callback:
                callback(min(part, len(data)))
            data = data[part:] or _read(file, part)

    _multipart(client, bodies(), bucket, key, extra, config)


def _read(file, size):
    pieces = []
    while size:
        data = file.read(size)
        if not data:
            break
        pieces.append(data)
        size -= len(data)
    return b"".join(pieces)


def part_bytes(wanted, size=None):
    """How large parts are, within the service's limits."""
    if size is not None:
        while -(-size // wanted) > PARTS_MAX:
            wanted *= 2
    return max(PART_BYTES_MIN, min(PART_BYTES_MAX, wanted))


def _multipart(client, bodies, bucket, key, extra, config):
    create = _without(extra, rules.CHECKSUMS + ["MpuObjectSize"])
    if any(name in extra for name in rules.CHECKSUMS):
        create["ChecksumType"] = create.get("ChecksumType", "FULL_OBJECT")
        algorithm = next(name for name in rules.CHECKSUMS if name in extra)
        create.setdefault("ChecksumAlgorithm", algorithm[len("Checksum") :])
        extra = dict(extra, ChecksumAlgorithm=create["ChecksumAlgorithm"])
    part_extra = _only(extra, rules.PART_ARGS)

    def start(number, upload, body):
        parameters = dict(part_extra, Bucket=bucket, Key=key, PartNumber=number, UploadId=upload)
        return client._start("UploadPart", parameters, body)

    complete = _only(
        extra, rules.COMPLETE_ARGS + ["ChecksumType", "MpuObjectSize"] + rules.CHECKSUMS
    )
    _parts(client, bucket, key, create, complete, bodies, start, config, lambda result: result)


def _parts(client, bucket, key, create, complete, bodies, start, config, part_of, done=None):
    """Creates, sends parts with as many in flight as allowed, completes; aborts on any failure."""
    upload = client.create_multipart_upload(Bucket=bucket, Key=key, **create)["UploadId"]
    parts = []
    checksum = "Checksum" + create.get("ChecksumAlgorithm", "").upper()
    flying = deque()

    def land():
        number, begun = flying.popleft()
        result = part_of(client._result(begun))
        part = {"ETag": result["ETag"], "PartNumber": number}
        if checksum in result:
            part[checksum] = result[checksum]
        parts.append(part)
        if done:
            done(number)

    try:
        for number, body in enumerate(bodies, 1):
            while len(flying) >= config.max_request_concurrency:
                land()
            flying.append((number, start(number, upload, body)))
        while flying:
            land()
        client.complete_multipart_upload(
            Bucket=bucket, Key=key, UploadId=upload, MultipartUpload={"Parts": parts}, **complete
        )
    except BaseException:
        try:
            for _, begun in flying:
                begun.channel.abandon(begun.call)
            client.abort_multipart_upload(Bucket=bucket, Key=key, UploadId=upload)
        except Exception:
            pass  # the function hears why the upload failed, and not that nothing else works either
        raise


def download_file(self, Bucket, Key, Filename, ExtraArgs=None, Callback=None, Config=None):
    """Downloads to a file, which appears when it is whole."""
    name = _filename(Filename)
    extra = _extra(ExtraArgs, rules.ALLOWED_DOWNLOAD_ARGS)
    special = os.path.exists(name) and not os.path.isfile(name)
    if special and os.path.isdir(name):
        special = False
    target = name if special else "%s%s%s" % (name, os.extsep, os.urandom(4).hex())
    found = _get(self, Bucket, Key, extra)
    try:
        with open(target, "wb") as file:
            _receive(self, (Bucket, Key, extra), found, file, Callback, Config)
        if not special:
            os.rename(target, name)
    except _Exceeded as error:
        _remove(special, target)
        raise RetriesExceededError(error.last_exception) from error
    except BaseException:
        found["Body"].close()
        _remove(special, target)
        raise


def _remove(special, target):
    if not special and os.path.exists(target):
        os.remove(target)


def download_fileobj(self, Bucket, Key, Fileobj, ExtraArgs=None, Callback=None, Config=None):
    """Downloads into a file-like object."""
    if not hasattr(Fileobj, "write"):
        raise ValueError("Fileobj must implement write")
    extra = _extra(ExtraArgs, rules.ALLOWED_DOWNLOAD_ARGS)
    found = _get(self, Bucket, Key, extra)
    try:
        if _seekable(Fileobj):
            Fileobj.seek(0)  # a file that can be written anywhere is written from its start
        _receive(self, (Bucket, Key, extra), found, Fileobj, Callback, Config)
    except _Exceeded as error:
        raise Exceeded(error.last_exception) from error
    except BaseException:
        found["Body"].close()
        raise


class _Exceeded(Exception):
    """A body broke off as often as is allowed."""

    def __init__(self, last_exception):
        self.last_exception = last_exception


def _receive(client, wanted, found, file, callback, config):
    """Writes a body to a file. One that breaks off is asked for again, from its start."""
    raw, etag = found["Body"]._raw_stream, found.get("ETag")
    written = 0  # of a file that cannot be rewound
    for attempt in range((config or TransferConfig()).num_download_attempts):
        if attempt:
            raw = _get_again(client, *wanted, etag)
        come = 0
        try:
            for view in raw.windows():
                come += len(view)
                # Not the view: what an object keeps of it would change with the next piece.
                data = bytes(view)[max(len(view) - max(come - written, 0), 0) :]
                if data:
                    file.write(data)
                    written += len(data)
                if callback:
                    callback(len(view))
            return
        except BROKEN as error:
            raw.close()
            last = error
            if callback:
                callback(-come)
            if _seekable(file):
                file.seek(0)
                written = 0
    raise _Exceeded(last)


def _seekable(file):
    if hasattr(file, "seekable"):
        return file.seekable()
    try:
        file.seek(0, os.SEEK_CUR)
        return True
    except (AttributeError, OSError):
        return False


def _get(client, bucket, key, extra):
    """An object; where there is none, the error that a HEAD gives."""
    try:
        return client.get_object(Bucket=bucket, Key=key, **extra)
    except ClientError:
        client.head_object(Bucket=bucket, Key=key, **extra)
        raise


def _get_again(client, bucket, key, extra, etag):
    """The bytes of the same object: some of another one's may not come behind what has come."""
    if etag is not None:
        extra = dict({"IfMatch": etag}, **extra)
    try:
        return client.get_object(Bucket=bucket, Key=key, **extra)["Body"]._raw_stream
    except ClientError as error:
        if error.response.get("Error", {}).get("Code") != "PreconditionFailed":
            raise
        raise S3DownloadFailedError(
            'Contents of stored object "%s" in bucket "%s" did not match expected ETag.'
            % (key, bucket)
        ) from error


HEAD_ARGS = {
    "CopySourceIfMatch": "IfMatch",
    "CopySourceIfModifiedSince": "IfModifiedSince",
    "CopySourceIfNoneMatch": "IfNoneMatch",
    "CopySourceIfUnmodifiedSince": "IfUnmodifiedSince",
    "CopySourceSSECustomerKey": "SSECustomerKey",
    "CopySourceSSECustomerAlgorithm": "SSECustomerAlgorithm",
    "CopySourceSSECustomerKeyMD5": "SSECustomerKeyMD5",
    "RequestPayer": "RequestPayer",
    "ExpectedBucketOwner": "ExpectedBucketOwner",
}
PRESERVED = """
    CacheControl ContentDisposition ContentEncoding ContentLanguage ContentType Expires Metadata
""".split()


def copy(
    self, CopySource, Bucket, Key, ExtraArgs=None, Callback=None, SourceClient=None, Config=None
):
    """Copies an object, in parts where it is large."""
    extra = _extra(ExtraArgs, rules.ALLOWED_COPY_ARGS)
    config = Config or TransferConfig()
    head = _head_of(CopySource)
    for name, value in extra.items():
        if name in HEAD_ARGS:
            head[HEAD_ARGS[name]] = value
    found = (SourceClient or self).head_object(**head)
    size = found["ContentLength"]
    if size < config.multipart_threshold:
        self.copy_object(CopySource=CopySource, Bucket=Bucket, Key=Key, **extra)
        if Callback:
            Callback(size)
        return
    _copy_parts(self, CopySource, Bucket, Key, extra, Callback, config, found)


def _head_of(copy_source):
    if isinstance(copy_source, dict):
        return dict(copy_source)
    if isinstance(copy_source, str):
        bucket, _, key = copy_source.partition("/")
        return {"Bucket": bucket, "Key": key}
    raise TypeError(
        "Expecting dictionary formatted: "
        "{'Bucket': bucket_name, 'Key': key} but got %s or type %s."
        % (copy_source, type(copy_source))
    )


def _copy_parts(client, copy_source, bucket, key, extra, callback, config, found):
    size = found["ContentLength"]
    part = part_bytes(config.multipart_chunksize, size)
    create = _without(extra, rules.COPY_SOURCE_ARGS + rules.DIRECTIVES + ["Tagging"])
    if extra.get("MetadataDirective") != "REPLACE":
        for name in PRESERVED:
            if found.get(name):
                create.setdefault(name, found[name])
    names = rules.COPY_SOURCE_ARGS + rules.CUSTOMER + rules.PAYER
    part_extra = _only(extra, names)
    if found.get("ETag") is not None:
        part_extra["CopySourceIfMatch"] = found["ETag"]

    def start(number, upload, at):
        parameters = dict(
            part_extra,
            CopySource=copy_source,
            CopySourceRange="bytes=%d-%d" % (at, min(at + part, size) - 1),
            Bucket=bucket,
            Key=key,
            PartNumber=number,
            UploadId=upload,
        )
        return client._start("UploadPartCopy", parameters)

    def done(number):
        if callback:
            callback(min(part, size - (number - 1) * part))

    complete = _only(extra, rules.COMPLETE_ARGS)
    offsets = range(0, size, part)
    _parts(
        client,
        bucket,
        key,
        create,
        complete,
        offsets,
        start,
        config,
        lambda result: result["CopyPartResult"],
        done,
    )
