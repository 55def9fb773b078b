"""botocore's exceptions, by their names, bases and messages; one identity for every way of import.

Those that something here raises are made at once, the others when somebody asks for their name.
"""

MODULE = "botocore.exceptions"
FACTORY = "botocore.errorfactory"


class BotoCoreError(Exception):
    """The base of what is not an answer of a service. `fmt` is filled with what it is given."""

    fmt = "An unspecified error occurred"

    def __init__(self, **kwargs):
        super().__init__(self.fmt.format(**kwargs))
        self.kwargs = kwargs

    def __reduce__(self):
        return _again, (type(self), self.kwargs)


def _again(kind, members):
    return kind(**members)


class ClientError(Exception):
    """A service answered with an error; `response` has it, as a dictionary."""

    MSG_TEMPLATE = (
        "An error occurred ({error_code}) when calling the {operation_name} "
        "operation{retry_info}: {error_message}"
    )

    def __init__(self, error_response, operation_name):
        error = error_response.get("Error", {})
        super().__init__(
            self.MSG_TEMPLATE.format(
                error_code=error.get("Code", "Unknown"),
                error_message=error.get("Message", "Unknown"),
                operation_name=operation_name,
                retry_info=_retries(error_response),
            )
        )
        self.response = error_response
        self.operation_name = operation_name

    def __reduce__(self):
        return ClientError, (self.response, self.operation_name)


def _retries(response):
    metadata = response.get("ResponseMetadata", {})
    if metadata.get("MaxAttemptsReached") and "RetryAttempts" in metadata:
        return " (reached max retries: %d)" % metadata["RetryAttempts"]
    return ""


def _make(name, bases, fmt=None):
    members = {"__module__": MODULE}
    if fmt is not None:
        members["fmt"] = fmt
    return type(name, bases, members)


BotoCoreError.__module__ = ClientError.__module__ = MODULE

HTTPClientError = _make(
    "HTTPClientError", (BotoCoreError,), "An HTTP Client raised an unhandled exception: {error}"
)


def _http(self, request=None, response=None, **kwargs):
    self.request = request
    self.response = response
    BotoCoreError.__init__(self, **kwargs)


HTTPClientError.__init__ = _http
ConnectionError = _make(
    "ConnectionError", (BotoCoreError,), "An HTTP Client failed to establish a connection: {error}"
)
EndpointConnectionError = _make(
    "EndpointConnectionError",
    (ConnectionError,),
    'Could not connect to the endpoint URL: "{endpoint_url}"',
)
ConnectionClosedError = _make(
    "ConnectionClosedError",
    (HTTPClientError,),
    "Connection was closed before we received a valid response "
    'from endpoint URL: "{endpoint_url}".',
)
ReadTimeoutError = _make(
    "ReadTimeoutError", (HTTPClientError,), 'Read timeout on endpoint URL: "{endpoint_url}"'
)
ResponseStreamingError = _make(
    "ResponseStreamingError",
    (HTTPClientError,),
    "An error occurred while reading from response stream: {error}",
)
ParamValidationError = _make(
    "ParamValidationError", (BotoCoreError,), "Parameter validation failed:\n{report}"
)
IncompleteReadError = _make(
    "IncompleteReadError",
    (BotoCoreError,),
    "{actual_bytes} read, but total bytes expected is {expected_bytes}.",
)
UnseekableStreamError = _make(
    "UnseekableStreamError",
    (BotoCoreError,),
    "Need to rewind the stream {stream_object}, but stream is not seekable.",
)
PaginationError = _make("PaginationError", (BotoCoreError,), "Error during pagination: {message}")
OperationNotPageableError = _make(
    "OperationNotPageableError", (BotoCoreError,), "Operation cannot be paginated: {operation_name}"
)
UnknownClientMethodError = _make(
    "UnknownClientMethodError", (BotoCoreError,), "Client does not have method: {method_name}"
)


class WaiterError(BotoCoreError):
    """A waiter gave up; `last_response` is what it saw last."""

    fmt = "Waiter {name} failed: {reason}"

    def __init__(self, name, reason, last_response):
        super().__init__(name=name, reason=reason)
        self.last_response = last_response

    def __reduce__(self):
        return type(self), (self.kwargs["name"], self.kwargs["reason"], self.last_response)


WaiterError.__module__ = MODULE


class HostError(BotoCoreError):
    """The host could not carry the call; `code` says why in a word."""

    fmt = "The host could not carry out {operation}: {message} ({code})"

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.code = kwargs["code"]


HINTS = {
    "Unsupported": "; the host carries most of S3, and not this: deploy the function with "
    '`mode = "stock"` in function.toml, and it has the real boto3, a network and the store\'s keys',
    "TooLarge": "; send it as a multipart upload",
}


def host_error(code, message, operation):
    """The exception for what a host answers with status 2, or for a host that is gone."""
    endpoint = "unlade host, %s" % operation
    if code == "Timeout":
        return ReadTimeoutError(endpoint_url=endpoint, error=message)
    if code == "Unavailable":
        return EndpointConnectionError(endpoint_url="%s: %s" % (endpoint, message), error=message)
    if code in ("Broken", "Lost"):
        return ConnectionClosedError(endpoint_url="%s: %s" % (endpoint, message), error=message)
    return HostError(code=code, message=message + HINTS.get(code, ""), operation=operation)


def stream_error(meta):
    """The exception for a body that the host cannot go on with; `meta` are its bytes."""
    from .text import decode

    error = decode(meta.decode()).get("error", {}) if meta else {}
    message = error.get("Message", "the host could not read the rest of the body")
    if error.get("Code") == "Timeout":
        return ReadTimeoutError(endpoint_url="unlade host", error=message)
    raised = ResponseStreamingError(error=message)
    raised.ended = error.get("Code") == "Broken"
    return raised


def named(name):
    """The exception of that name that nothing here raises. AttributeError where there is none."""
    found = globals().get(name)
    if isinstance(found, type) and issubclass(found, Exception):
        return found
    from .error_names import bases_of

    bases = tuple(base if isinstance(base, type) else named(base) for base in bases_of(name))
    found = globals()[name] = _make(name, bases)
    return found


class S3Exceptions:
    """`client.exceptions`: the service's own exceptions, and the way from code to class."""

    __module__ = FACTORY
    ClientError = ClientError

    def __init__(self, names):
        self._code_to_exception = {
            name: type(name, (ClientError,), {"__module__": FACTORY}) for name in names
        }
        self.__dict__.update(self._code_to_exception)

    def from_code(self, error_code):
        """The class for an error code; ClientError where the service's model has none."""
        return self._code_to_exception.get(error_code, ClientError)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(
            "%s object has no attribute %s. Valid exceptions are: %s"
            % (self, name, ", ".join(self._code_to_exception))
        )
