"""Transfers where something goes wrong on the way."""

import io

import host
import pytest
from instances import Store

from unlade_guest.errors import ClientError, ResponseStreamingError
from unlade_guest.session import Session
from unlade_guest.transfer_errors import S3DownloadFailedError

SIZE = 1_000_000


class Breaks:
    """A body that breaks off."""

    def __init__(self, data):
        self.inner = io.BytesIO(data)

    def read(self, size):
        data = self.inner.read(size)
        if not data:
            raise ResponseStreamingError(error="reset")
        return data


class Changing(Store):
    """Its object breaks off `breaks` times. With `changes` it is another one each time."""

    def __init__(self, breaks, changes):
        super().__init__()
        self.breaks = breaks
        self.changes = changes
        self.asked = []

    def __call__(self, service, operation, parameters, body, region):
        if operation != "GetObject":
            return super().__call__(service, operation, parameters, body, region)
        self.asked.append(parameters.get("IfMatch"))
        version = len(self.asked) if self.changes else 1
        etag = '"%d"' % version
        if parameters.get("IfMatch", etag) != etag:
            error = {"Code": "PreconditionFailed", "Message": "it has changed"}
            meta = {"error": error, "operation": operation, "http_status": 412}
            return host.Outcome(1, meta)
        data = b"%d" % version * SIZE
        whole = len(self.asked) > self.breaks
        meta = {
            "result": {"ContentLength": SIZE, "ETag": etag},
            "headers": {"content-length": str(SIZE)},
            "http_status": 200,
        }
        return host.Outcome(0, meta, io.BytesIO(data) if whole else Breaks(data[:700_000]), SIZE)


class Forward:
    """A file that cannot be rewound."""

    def __init__(self):
        self.data = b""

    def seekable(self):
        return False

    def write(self, data):
        self.data += data


class TestOfOneThatChanges:
    @pytest.fixture
    def store(self):
        return Changing(1, True)

    def test_an_object_that_has_changed_is_not_put_behind_another(self, link, store):
        file = Forward()
        why = 'Contents of stored object "k" in bucket "box" did not match expected ETag.'
        with pytest.raises(S3DownloadFailedError) as raised:
            Session().client("s3").download_fileobj("box", "k", file)
        assert str(raised.value) == why
        assert set(file.data) == set(b"1") and store.asked == [None, '"1"']


class TestOfOneThatStays:
    @pytest.fixture
    def store(self):
        return Changing(2, False)

    def test_it_is_asked_for_again(self, link, store):
        file = Forward()
        Session().client("s3").download_fileobj("box", "k", file)
        assert file.data == b"1" * SIZE and store.asked == [None, '"1"', '"1"']


class Refusing(Store):
    """Takes no parts, and does not abort either."""

    def __call__(self, service, operation, parameters, body, region):
        if operation == "CreateMultipartUpload":
            return host.Outcome(0, {"result": {"UploadId": "u"}, "http_status": 200})
        if operation == "UploadPart":
            meta = {"error": {"Code": "Full", "Message": "no"}, "operation": operation}
            return host.Outcome(1, dict(meta, http_status=507))
        return super().__call__(service, operation, parameters, body, region)


class TestOfAStoreThatIsFull:
    @pytest.fixture
    def store(self):
        return Refusing()

    def test_it_is_said_why_an_upload_failed(self, link, store):
        body = io.BytesIO(b"x" * (9 << 20))
        with pytest.raises(ClientError, match="Full"):
            Session().client("s3").upload_fileobj(body, "box", "k")
        assert store.calls[-1][1] == "AbortMultipartUpload"
