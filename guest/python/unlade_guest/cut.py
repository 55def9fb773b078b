"""Calls of real botocore clients, cut before a request is made of them and carried to the host.

`before-call` lets a handler answer in place of the network. The host is asked by the names of the
operation and its parameters, as they were given; so it needs no credentials here, and exceptions
that the service's model has come out of botocore as ever.
"""

from .body import RawBody, StreamingBody
from .calls import perform
from .descriptors import DONE
from .s3.client import response_of
from .source import of as source_of

HELD = "unlade_parameters"


class Response:
    """What botocore looks at of an HTTP response."""

    def __init__(self, status_code, headers):
        self.status_code = status_code
        self.headers = headers
        self.content = b""
        self.raw = None


def install(session):
    """Cuts the calls of every client of a botocore session."""
    session.register("before-parameter-build", _hold, unique_id="unlade-hold")
    session.register("before-call", _carry, unique_id="unlade-carry")
    session.register("choose-signer", _unsigned, unique_id="unlade-unsigned")


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
        body = source_of(parameters.pop(payload))
    streamed = _streamed(model.output_shape)
    answer = perform(
        model.service_model.service_name, model.name, parameters, body, streamed is not None
    )
    parsed = response_of(answer)
    status = parsed["ResponseMetadata"]["HTTPStatusCode"]
    if answer.status != DONE:
        status = max(status, 400)
    elif streamed is not None:
        found = parsed.pop("Body", None)
        if found is None and answer.stream is not None:
            found = StreamingBody(RawBody(answer.stream), None)
        parsed[streamed] = found
    return Response(status, parsed["ResponseMetadata"]["HTTPHeaders"]), parsed


def _streamed(shape):
    """The member of a shape that is a body, or None."""
    payload = getattr(shape, "serialization", {}).get("payload") if shape is not None else None
    if payload and shape.members[payload].type_name == "blob":
        return payload
    return None
