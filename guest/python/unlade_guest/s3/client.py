"""`boto3.client("s3")`: a method for each operation, one way for all of them."""

from ..body import RawBody, StreamingBody, StreamingChecksumBody
from ..calls import begin, collect
from ..descriptors import DONE
from ..errors import OperationNotPageableError, S3Exceptions, host_error
from .. import source
from . import customise, shape, validate
from .meta import ClientMeta

STREAMING = ("GetObject", "GetObjectTorrent", "GetObjectAnnotation", "SelectObjectContent")
EXCEPTIONS = S3Exceptions(shape.ERRORS)
TRANSFERS = ("upload_file", "download_file", "upload_fileobj", "download_fileobj", "copy")
PAGES = (
    "ListBuckets",
    "ListDirectoryBuckets",
    "ListMultipartUploads",
    "ListObjectAnnotations",
    "ListObjectVersions",
    "ListObjects",
    "ListObjectsV2",
    "ListParts",
)


class BaseClient:
    """The counterpart of botocore's base class of clients."""

    def __init__(self, meta):
        self.meta = meta

    def __getattr__(self, name):
        operation = shape.METHODS.get(name)
        if operation is None and name in shape.ELSEWHERE:
            method = _elsewhere(name, shape.ELSEWHERE[name])
            setattr(type(self), name, method)
            return method.__get__(self)
        if operation is None:
            raise AttributeError(
                "'%s' object has no attribute '%s'" % (self.__class__.__name__, name)
            )
        method = _method(name, operation)
        setattr(type(self), name, method)
        return method.__get__(self)

    def __dir__(self):
        return sorted({*super().__dir__(), *shape.METHODS, *shape.ELSEWHERE})

    def _make_api_call(self, operation_name, api_params):
        """One operation: its parameters in, its result out. ClientError, ParamValidationError."""
        events = self.meta.events
        if events.registered:
            api_params = events.before(operation_name, api_params)
        answer, result = self._call(operation_name, dict(api_params))
        if events.registered:
            events.after(operation_name, result)
        if answer.status == DONE:
            return result
        raise exception_of(result, answer.said.get("operation") or operation_name)

    def _call(self, operation_name, parameters):
        return self._end(self._start(operation_name, parameters))

    def _start(self, operation_name, parameters, body=None):
        """Checks and submits an operation, without waiting for its end."""
        expected = shape.operation(operation_name)
        customise.before_check(operation_name, parameters)
        if self.meta.config.parameter_validation:
            validate.check(parameters, expected)
        if body is None and expected.body and parameters.get(expected.body) is not None:
            body = source.of(parameters[expected.body], parameters.get("ContentLength"))
        parameters = customise.plain(parameters, expected)
        meta = self.meta
        return begin(
            "s3", operation_name, parameters, body, meta.region_name, meta.unsigned(operation_name)
        )

    @staticmethod
    def _end(begun):
        answer = collect(begun, begun.operation in STREAMING)
        return answer, response_of(answer, begun.operation)

    @staticmethod
    def _result(begun):
        """The result of an operation that was started; ClientError."""
        answer, result = BaseClient._end(begun)
        if answer.status != DONE:
            raise exception_of(result, answer.said.get("operation") or begun.operation)
        return result

    @property
    def exceptions(self):
        """The service's exceptions."""
        return EXCEPTIONS

    def can_paginate(self, operation_name):
        """True if `get_paginator` supports a method."""
        return shape.METHODS[operation_name] in PAGES

    def get_paginator(self, operation_name):
        """The paginator of a method."""
        from .paginate import Paginator

        if not self.can_paginate(operation_name):
            raise OperationNotPageableError(operation_name=operation_name)
        return Paginator(self, operation_name, shape.METHODS[operation_name])

    @property
    def waiter_names(self):
        """The names that `get_waiter` supports."""
        from .wait import NAMES

        return sorted(NAMES)

    def get_waiter(self, waiter_name):
        """A waiter by its name."""
        from .wait import waiter

        return waiter(self, waiter_name)

    def generate_presigned_url(self, ClientMethod, Params=None, ExpiresIn=3600, HttpMethod=None):
        """A URL that does the operation for whoever has it; the host signs it."""
        from .presign import url

        return url(self, ClientMethod, Params, ExpiresIn, HttpMethod)

    def generate_presigned_post(self, Bucket, Key, Fields=None, Conditions=None, ExpiresIn=3600):
        """The URL and the fields of a form that uploads; the host signs it."""
        from .presign import post

        return post(self, Bucket, Key, Fields, Conditions, ExpiresIn)

    def close(self):
        """There is nothing that a client has for itself."""

    def _convert_to_request_dict(self, *_, **__):
        raise NotImplementedError("requests are made by the host, not in the function")


def _method(name, operation):
    def call(self, *args, **kwargs):
        if args:
            raise TypeError("%s() only accepts keyword arguments." % name)
        return self._make_api_call(operation, kwargs)

    call.__name__ = str(name)
    call.__qualname__ = "S3." + name
    call.__doc__ = "Carries out %s." % operation
    return call


def _elsewhere(name, operation):
    """A method for what no host carries: it says so."""

    def call(self, *args, **kwargs):
        raise host_error("Unsupported", "not in a function", operation)

    call.__name__ = str(name)
    call.__qualname__ = "S3." + name
    return call


def _transfer(name):
    def call(self, *args, **kwargs):
        from . import transfer

        return getattr(transfer, name)(self, *args, **kwargs)

    call.__name__ = name
    return call


BaseClient.__module__ = "botocore.client"
S3 = type(
    "S3",
    (BaseClient,),
    dict({name: _transfer(name) for name in TRANSFERS}, __module__="botocore.client"),
)


def client(config, region, endpoint, events):
    """A client; nothing is sent."""
    return S3(ClientMeta(config, region, endpoint, events))


def response_of(answer, operation=None):
    """The dictionary that boto gives for an answer to an operation."""
    said = answer.said
    metadata = _metadata(said)
    if answer.status != DONE:
        response = {"Error": said.get("error", {}), "ResponseMetadata": metadata}
        if said.get("operation") == "GetBucketLocation":
            response["LocationConstraint"] = None
        response.update(said.get("members", {}))
        return response
    result = said.get("result", {})
    if answer.stream is not None and operation == "SelectObjectContent":
        from .events import EventStream

        result["Payload"] = EventStream(RawBody(answer.stream), operation)
    elif answer.stream is not None:
        kind = StreamingBody
        if "checksum_algorithm" in said:
            kind = StreamingChecksumBody
        length = metadata["HTTPHeaders"].get("content-length")
        result["Body"] = kind(RawBody(answer.stream, length), length)
    return dict({"ResponseMetadata": metadata}, **result)


def _metadata(said):
    headers = said.get("headers", {})
    status = said.get("http_status", 200)
    request, host = said.get("request_id"), headers.get("x-amz-id-2")
    if request is not None and said.get("error", {}).get("Code") == str(status):
        host = host or ""  # the answer had no body: botocore makes its error of the head
    metadata = {}
    if request is not None:
        metadata["RequestId"] = request
    if host is not None:
        metadata["HostId"] = host
    metadata["HTTPStatusCode"] = status
    metadata["HTTPHeaders"] = headers
    metadata["RetryAttempts"] = said.get("retries", 0)
    if said.get("max_attempts_reached"):
        metadata["MaxAttemptsReached"] = True
    if "checksum_algorithm" in said:
        metadata["ChecksumAlgorithm"] = said["checksum_algorithm"]
    return metadata


def exception_of(response, operation_name):
    """The exception for a response that is an error."""
    return EXCEPTIONS.from_code(response.get("Error", {}).get("Code"))(response, operation_name)
