"""Interception of real botocore clients, whose calls and requests are sent to the host.

S3 is cut at `before-call`, which lets a handler answer in place of the network: the host is asked by
the names of the operation and its parameters, as they were given. Every other service is cut where
its request would be sent (`cut.py`). Every session of the real one is cut, whoever makes it: there
is no network for it here, and there are no credentials.
"""

from . import cut, endpoints
from .body import RawBody, StreamingBody
from .calls import perform
from .descriptors import DONE
from .errors import host_error
from .s3.client import client, response_of
from .s3.customise import plain
from .s3.meta import Events, is_unsigned
from .s3.shape import METHODS, operation
from .source import of as source_of

HELD = "unlade_parameters"
CO_COROUTINE = 0x80
ASYNC = (
    "the host carries calls of boto3, not those of asynchronous clients (aiobotocore, aioboto3, "
    "s3fs; here of %s): use boto3, or deploy the function with `mode = \"stock\"` in function.toml"
)


class Response:
    """The attributes of an HTTP response that botocore reads."""

    def __init__(self, status_code, headers):
        self.status_code = status_code
        self.headers = headers
        self.content = b""
        self.raw = None


def install(session):
    """Cuts the calls of every S3 client of a botocore session."""
    session.register("before-parameter-build.s3", _hold, unique_id="unlade-hold")
    session.register("before-call.s3", _carry, unique_id="unlade-carry")
    session.register("choose-signer.s3", _unsigned, unique_id="unlade-unsigned")
    events = session.get_component("event_emitter")
    # After botocore's own, which is registered for every service.
    events.register_last("creating-client-class", _presigning, unique_id="unlade-presigning")


def install_everywhere(kind):
    """Cuts every session that is made of a class of sessions, and checks its clients' endpoints."""
    from botocore.endpoint import EndpointCreator

    cut.install_endpoints(EndpointCreator)
    make, create = kind.__init__, kind.create_client

    def init(self, *args, **kwargs):
        make(self, *args, **kwargs)
        if is_async(type(self)):
            self.create_client = _refuse_async
        else:
            install(self)

    def create_client(self, service_name, *args, **kwargs):
        client = create(self, service_name, *args, **kwargs)
        endpoints.check_made(service_name, client)
        if service_name != "s3":
            cut.install(client)
        return client

    kind.__init__ = init
    kind.create_client = create_client


def is_async(kind):
    """True if clients of a session class are asynchronous: aiobotocore's, and derived ones."""
    methods = (getattr(kind, name, None) for name in ("create_client", "_create_client"))
    codes = (getattr(method, "__code__", None) for method in methods)
    return any(code is not None and code.co_flags & CO_COROUTINE for code in codes)


def _refuse_async(service_name, *_, **__):
    raise host_error("Asynchronous", ASYNC % service_name, "CreateClient")


def _hold(params, context=None, **_):
    if context is not None:
        context[HELD] = dict(params)


def _unsigned(**_):
    from botocore import UNSIGNED

    return UNSIGNED


def _carry(model, params, context=None, **_):
    """The host's answer, as `before-call` wants it: a response and what was parsed of it."""
    context = context if context is not None else params.get("context", {})
    parameters = dict(context.get(HELD, {}))
    body = None
    payload = _streamed(model.input_shape)
    if payload and parameters.get(payload) is not None:
        sent = parameters.pop(payload)
        _tell(sent, True)
        body = source_of(sent)
    streamed = _streamed(model.output_shape)
    streams = streamed is not None or model.has_event_stream_output
    service = model.service_model.service_name
    region, unsigned = context.get("client_region"), False
    if service == "s3" and model.name in METHODS.values():
        parameters = plain(parameters, operation(model.name))
        unsigned = is_unsigned(getattr(context.get("client_config"), "signature_version", None))
    try:
        answer = perform(service, model.name, parameters, body, streams, region, unsigned)
    finally:
        if body is not None:
            _tell(sent, False)
    parsed = response_of(answer, model.name)
    status = parsed["ResponseMetadata"]["HTTPStatusCode"]
    if answer.status != DONE:
        status = max(status, 400)
    elif streamed is not None:
        found = parsed.pop("Body", None)
        if found is None and answer.stream is not None:
            found = StreamingBody(RawBody(answer.stream), None)
        parsed[streamed] = found
    return Response(status, parsed["ResponseMetadata"]["HTTPHeaders"]), parsed


def _tell(body, begins):
    """Tells s3transfer's bodies that they are read to be sent, or no more: they count bytes then. It
    hears of that by events of a request, and there is none here."""
    names = ("signal_transferring", "enable_callback")
    if not begins:
        names = ("signal_not_transferring", "disable_callback")
    for name in names:
        tell = getattr(body, name, None)
        if tell is not None:
            return tell()


def _presigning(class_attributes, event_name, **_):
    if event_name.endswith(".s3"):
        class_attributes.update(generate_presigned_url=_url, generate_presigned_post=_post)


def _url(self, *args, **kwargs):
    """A URL; the host signs it."""
    return _synthetic(self).generate_presigned_url(*args, **kwargs)


def _post(self, *args, **kwargs):
    """The URL and the fields of a form; the host signs them."""
    return _synthetic(self).generate_presigned_post(*args, **kwargs)


def _synthetic(real):
    from .config import Config

    meta = real.meta
    given = Config(signature_version=meta.config.signature_version)
    return client(given, meta.region_name, meta.endpoint_url, Events())


def _streamed(shape):
    """The member of a shape that is a body, or None."""
    payload = getattr(shape, "serialization", {}).get("payload") if shape is not None else None
    if payload and shape.members[payload].type_name == "blob":
        return payload
    return None
