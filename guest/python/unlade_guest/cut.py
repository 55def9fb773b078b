"""Requests of real botocore clients of services other than S3, carried to the host.

An HTTP session of a client is replaced, and its signer. Everything before a request is sent
(serialisers, hooks up to `before-send`) and after its answer has come (parsers, retries, event
streams) is botocore's own. The host signs, with its own keys or with those of the client
(`keys.py`), and knows the endpoint.
"""

from urllib.parse import urlsplit

from . import keys
from .body import RawBody
from .calls import collect, submit
from .channel import ChannelLost
from .descriptors import REQUEST
from .errors import (
    ConnectionClosedError,
    EndpointConnectionError,
    HostError,
    ReadTimeoutError,
    ResponseStreamingError,
    host_error,
)
from .source import of as source_of

# Stands where a signature would: hooks see that a request is signed.
SIGNED = "AWS4-HMAC-SHA256 Credential=unlade/host"
# Framing is the host's.
DROPPED = ("content-length", "transfer-encoding", "expect")
OPERATION = "unlade_operation"
GLOBAL_REGION = "us-east-1"
PRESIGN = (
    "the host has the credentials, and makes presigned URLs and tokens of S3 only, not of %s: "
    'deploy the function with `mode = "stock"` in function.toml'
)
V4A = "%s needs Signature Version 4a, which the host does not make yet"
# Hosts of one account, which botocore finds for an ARN: ACCOUNT.KIND.REGION.SUFFIX. The ordinary host
# answers the same requests.
OF_ACCOUNT = ("control-kinesis", "data-kinesis", "ddb")
PREFIX = "the operation needs the host %s, and the host carries requests to %s only"


def install(client):
    """Replaces the signer of a client, and tells its HTTP session about it."""
    service = client.meta.service_model.service_name
    session = client._endpoint.http_session
    session.service, session.region = service, client.meta.region_name
    session.netloc = urlsplit(client.meta.endpoint_url).netloc
    # The host reads a request before it sends it, and no service needs a compressed one.
    client.meta.config.disable_request_compression = True
    signer = client._request_signer
    session.credentials = signer._credentials
    signer.get_auth_instance = signer.get_auth = Signers(service)
    client.meta.events.register_first("before-send", _note, unique_id="unlade-note")


def install_endpoints(kind):
    """Makes a class of creators of endpoints give `Session` to clients of services but S3."""
    create = kind.create_endpoint

    def create_endpoint(self, service_model, *args, **kwargs):
        if service_model.service_name != "s3":
            kwargs["http_session_cls"] = Session
        return create(self, service_model, *args, **kwargs)

    kind.create_endpoint = create_endpoint


def _note(request, event_name, **_):
    """The operation is named by this event, and by nothing that `Session.send` is given."""
    setattr(request, OPERATION, event_name.rpartition(".")[2])


class Signers:
    """Gives signers of a service."""

    def __init__(self, service):
        self._service = service

    def __call__(self, signing_name, region_name, signature_version=None, expires=None, **_):
        version = str(signature_version)
        if expires is not None or version.endswith(("-query", "-presign-post")):
            raise _failure("Unsupported", PRESIGN % self._service, "Presign")
        if version.startswith(("v4a", "s3v4a")):
            raise _failure("Unsupported", V4A % self._service, "Sign")
        return _SIGNER


class _Signer:
    """Marks a request as one to sign."""

    def add_auth(self, request):
        if "Authorization" in request.headers:
            del request.headers["Authorization"]
        request.headers["Authorization"] = SIGNED


_SIGNER = _Signer()


class Session:
    """Takes the place of botocore's HTTP session."""

    def __init__(self, timeout=None, **_):
        self.service = self.region = self.netloc = self.credentials = None
        read = timeout[1] if isinstance(timeout, (list, tuple)) else timeout
        self._read_timeout_ms = None if read is None else max(int(read * 1000), 1)

    def close(self):
        """Nothing is open."""

    def send(self, request):
        """The answer to a prepared request, as an `AWSResponse`. Raises what stock botocore raises
        where there is none; HostError where the host refuses."""
        operation = getattr(request, OPERATION, "")
        try:
            return self._send(request, operation)
        except (ReadTimeoutError, EndpointConnectionError, ConnectionClosedError) as error:
            why = error.kwargs.get("error")
            raise type(error)(endpoint_url=request.url, error=why) from None
        except ResponseStreamingError as error:
            raise ConnectionClosedError(
                endpoint_url=request.url, error=error, request=request
            ) from None

    def _send(self, request, operation):
        from botocore.awsrequest import AWSResponse

        meta = self._meta(request, operation)
        body = None if request.body is None else source_of(request.body)
        try:
            answer = collect(submit(REQUEST, meta, operation, body), True, _failure)
        except ChannelLost as error:
            raise host_error("Lost", str(error), operation) from None
        headers = dict(answer.said["headers"])
        raw = Raw(answer.stream, headers.get("content-length"))
        response = AWSResponse(request.url, answer.said["http_status"], headers, raw)
        if not request.stream_output:
            response.content  # at once, as stock botocore does: its connection is free then
        return response

    def _meta(self, request, operation):
        url = urlsplit(request.url)
        if not _same_host(url.netloc, self.netloc):
            raise _failure("Unsupported", PREFIX % (url.netloc, self.netloc), operation)
        headers, signed = [], False
        for name, value in request.headers.items():
            name = name.lower()
            if isinstance(value, bytes):
                value = value.decode("utf-8", "replace")
            if name == "authorization" and value == SIGNED:
                signed = True
            elif name not in DROPPED:
                headers.append((name, str(value).strip()))
        region = self.region or GLOBAL_REGION
        meta = {
            "service": self.service,
            "operation": operation,
            "region": GLOBAL_REGION if region == "aws-global" else region,
            "method": request.method,
            "path": url.path or "/",
            "query": url.query,
            "headers": headers,
        }
        own = keys.of_credentials(self.credentials) if signed else None
        if not signed:
            meta["unsigned"] = True
        elif own is not None:
            meta["credentials"] = own
        if self._read_timeout_ms is not None:
            meta["read_timeout_ms"] = self._read_timeout_ms
        return meta


def _same_host(given, ordinary):
    """True for a client's ordinary host, and for one of an account in its place."""
    account, _, rest = given.partition(".")
    kind, _, rest = rest.partition(".")
    of_account = account.isdigit() and kind in OF_ACCOUNT
    return given == ordinary or (of_account and rest == ordinary.partition(".")[2])


def _failure(code, message, operation):
    """The exception for a failure of the host; without advice that is about S3."""
    if code in ("Timeout", "Unavailable", "Broken", "Lost"):
        return host_error(code, message, operation)
    return HostError(code=code, message=message, operation=operation)


class Raw(RawBody):
    """The raw stream of an answer: what has come is given out, as of a chunked response."""

    def stream(self, amt=65536, decode_content=None):
        """Pieces as they come."""
        stream = self._stream
        while stream is not None:
            with stream.lock:
                view = stream.window()
                if view is None:
                    return
                data = bytes(view)
                view = None
                stream.advance(len(data))
            self._position += len(data)
            yield data
