"""One call of a service: parameters out, body out, result, error or body back."""

from time import sleep

from . import descriptors as wire
from .body import Stream
from .channel import ChannelLost
from .current import channel
from .errors import host_error
from .text import decode, encode

INLINE_BYTES_MAX = 4096
PIECE_SLOTS_MAX = 16


class Answer:
    """The result of a call. `stream` is its body, if it has one."""

    __slots__ = ("status", "flags", "said", "stream")

    def __init__(self, status, flags, said, stream):
        self.status = status
        self.flags = flags
        self.said = said
        self.stream = stream


def perform(
    service, operation, parameters, body=None, streaming=False, region=None, unsigned=False
):
    """Carries a call out and waits for its end. `body` has `length` and `fill` (see `source.py`).

    Raises what `errors.host_error` makes of failures that are not the service's.
    """
    begun = begin(service, operation, parameters, body, region, unsigned)
    return collect(begun, streaming)


class Begun:
    """A call in flight, and what it takes to make it again."""

    __slots__ = ("channel", "call", "kind", "meta", "pieces", "body", "operation")

    def __init__(self, link, kind, meta, pieces, body, operation):
        self.channel = link
        self.call = None
        self.kind = kind
        self.meta = meta
        self.pieces = pieces
        self.body = body
        self.operation = operation


def begin(service, operation, parameters, body=None, region=None, unsigned=False):
    """Submits a call, all of its body included; does not wait for its end."""
    meta = {"service": service, "operation": operation, "parameters": parameters}
    if region is not None:
        meta["region"] = region
    if unsigned:
        meta["unsigned"] = True
    try:
        return submit(wire.CALL, meta, operation, body)
    except ChannelLost as error:
        raise host_error("Lost", str(error), operation) from None


def submit(kind, meta, operation, body=None):
    """Submits a CALL or a REQUEST by its text, with its body. ChannelLost where the host is gone."""
    link = channel()
    pieces = []
    if body is not None:
        meta["body_bytes"] = body.length
        if 0 < body.length <= INLINE_BYTES_MAX:
            meta["inline"] = True
            data = bytearray(body.length)
            body.fill(memoryview(data))
            pieces = [b"\0", data]
            body = None
        elif not body.length:
            body = None
    pieces.insert(0, encode(meta).encode())
    begun = Begun(link, kind, meta, pieces, body, operation)
    _send(begun)
    return begun


def _send(begun):
    link, body = begun.channel, begun.body
    if body is None:
        begun.call = link.submit(begun.pieces, operation=begun.kind)
        return
    begun.call = None
    try:
        _send_pieces(begun)
    except BaseException:
        if begun.call is not None:
            link.abandon(begun.call)
        raise


def _send_pieces(begun):
    """Submits a call with its body, as many slots of it at a time as are free."""
    link, body = begun.channel, begun.body
    slot_bytes = link.region.slot_bytes
    left = body.length
    call = None
    while left:
        extents = link.take_slots(min(-(-left // slot_bytes), PIECE_SLOTS_MAX), call)
        if not extents[1]:
            break
        size = min(left, extents[1] * slot_bytes)
        try:
            body.fill(link.region.guest_view(extents[0], size))
        except BaseException:
            link.give_slots(extents)
            raise
        left -= size
        if call is None:
            more = left > 0
            call = begun.call = link.submit(begun.pieces, extents, size, more, begun.kind)
        elif not link.submit_body(call, extents, size, left > 0):
            break


def collect(begun, streaming=False, failure=host_error):
    """Waits for a call's end. Where the host has too much at once, makes it again. `failure` makes
    the exception of a failure of the host."""
    try:
        return _collect(begun, streaming, failure)
    except ChannelLost as error:
        raise failure("Lost", str(error), begun.operation) from None


def _collect(begun, streaming, failure):
    link = begun.channel
    for attempt in range(wire.REFUSALS_MAX):
        completion = link.finish(begun.call)
        again = completion.flags & wire.AGAIN
        if completion.status != wire.REFUSED and not again:
            return _answer(link, begun.operation, completion, streaming, failure)
        _drop(link, completion)
        if again:
            _repeat(begun, completion)
        elif not Stream.spill_one(link):
            sleep(wire.REFUSED_WAIT_S * min(attempt + 1, 20))
        if begun.body is not None:
            begun.body.rewind()
        _send(begun)
    raise failure("Refused", "the host had too much to do at once", begun.operation)


def _repeat(begun, completion):
    """Waits for the next attempt of a call whose body the host has not kept."""
    said = decode(completion.meta.decode()) if completion.meta else {}
    sleep(said.get("again_after_ms", 0) / 1000)
    begun.pieces[0] = encode(dict(begun.meta, again=begun.call.number)).encode()


def _drop(link, completion):
    if completion.token:
        link.release(completion.token)


def _answer(link, operation, completion, streaming, failure):
    try:
        said = decode(completion.meta.decode()) if completion.meta else {}
    except BaseException:
        _drop(link, completion)
        raise
    if completion.status == wire.HOST_ERROR:
        _drop(link, completion)
        error = said.get("error", {})
        raise failure(error.get("Code", "Unknown"), error.get("Message", ""), operation)
    if completion.status == wire.DONE and streaming:
        return Answer(wire.DONE, completion.flags, said, Stream(link, completion))
    _drop(link, completion)
    return Answer(completion.status, completion.flags, said, None)
