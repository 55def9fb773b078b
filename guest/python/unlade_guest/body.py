"""Bodies that came: the bytes of slots, more of them by READ, and boto's `StreamingBody`."""

from _thread import allocate_lock
from _weakref import ref
from io import BytesIO, IOBase
from time import sleep

from . import descriptors as wire
from .channel import ChannelLost
from .errors import (
    HTTPClientError,
    IncompleteReadError,
    ResponseStreamingError,
    stream_error,
)
from .region import RegionError

READ_BYTES_WANTED = 0  # as many as the host likes


class Stream:
    """A body as the host gives it, piece by piece, in its slots. Use it under its `lock`."""

    __slots__ = ("lock", "_channel", "_token", "_view", "_at", "_more", "_failed", "__weakref__")

    _open = {}  # those that hold slots of the host, oldest first

    def __init__(self, link, completion):
        self.lock = allocate_lock()
        self._channel = link
        self._failed = None
        self._piece(completion)
        if self._token:
            Stream._make_room(link)
            Stream._open[id(self)] = ref(self)

    def _piece(self, completion):
        self._token = completion.token
        self._more = bool(completion.flags & wire.MORE)
        self._at = 0
        self._view = None
        if completion.body_bytes:
            region = self._channel.region
            self._view = region.host_view(completion.slot, completion.body_bytes)
        elif not self._more:
            self._finish()

    def _finish(self):
        """The host may have its slots again."""
        self._view = None
        self._let_go()

    def _let_go(self):
        unread, self._more = self._more, False
        token, self._token = self._token, 0
        if token:
            Stream._open.pop(id(self), None)
            self._channel.release(token, unread)

    def window(self):
        """The available bytes of the body, at least one; None at its end. Not copied.

        Raises what has ended it too early, each time.
        """
        while True:
            if self._view is not None and self._at < len(self._view):
                return self._view[self._at :] if self._at else self._view
            if self._failed is not None:
                raise self._failed
            if not self._more:
                self._finish()
                return None
            self._next()

    def advance(self, count):
        """`count` bytes of the window were used."""
        self._at += count
        if not self._more and self._view is not None and self._at >= len(self._view):
            self._finish()

    def _next(self):
        """READs the next piece; the one before is the host's again."""
        link = self._channel
        self._view = None
        for attempt in range(wire.REFUSALS_MAX):
            try:
                completion = link.finish(link.submit_read(self._token, READ_BYTES_WANTED))
            except BaseException:  # a signal's: the piece that it was about is lost
                self._end(stream_error(b""))
                raise
            if completion.status == wire.DONE:
                return self._piece(completion)
            if completion.status != wire.REFUSED:
                break
            if not Stream.spill_one(link):
                sleep(wire.REFUSED_WAIT_S * min(attempt + 1, 20))
        if completion.token:
            link.release(completion.token)  # that of what it says
        self._end(stream_error(completion.meta))
        raise self._failed

    def _end(self, error):
        """There is no more of the body, but `error` for its reader."""
        self._failed = error
        self._more = False
        self._finish()

    @classmethod
    def spill_one(cls, link):
        """Moves one body of another reader into the guest's own memory; whether there was one."""
        for found in list(cls._open.values()):
            stream = found()
            if stream is None or stream._channel is not link:
                continue
            if stream.lock.acquire(False):
                try:
                    if stream._token:
                        stream._spill()
                        return True
                finally:
                    stream.lock.release()
        return False

    def _spill(self):
        """Reads all of it. An exception on the way is for its own reader, after what has come."""
        out = BytesIO()
        try:
            view = self.window()
            while view is not None:
                size = out.write(view)
                view = None
                self.advance(size)
                view = self.window()
        except BaseException as error:
            view = None
            own = isinstance(error, (HTTPClientError, ChannelLost, RegionError))
            self._end(error if own else stream_error(b""))
            if not own:
                raise  # a signal's, in a thread that reads another body
        finally:
            self._view = memoryview(out.getvalue())
            self._at = 0

    @classmethod
    def _make_room(cls, link):
        """Unread bodies may have half of the host's slots."""
        while len(cls._open) > 1:
            held = 0
            for found in list(cls._open.values()):
                stream = found()
                if stream is not None and stream._channel is link and stream._view is not None:
                    held += -(-len(stream._view) // link.region.slot_bytes)
            if held * 2 <= link.region.host_slots or not cls.spill_one(link):
                return

    def close(self):
        """Drops what was not read."""
        self._finish()

    def __del__(self):
        if self._token:
            self._finish()


class RawBody(IOBase):
    """The bytes of a body as a raw file; what boto has an HTTP response for.

    A body whose connection ends too early just ends for those that read pieces of it, where its
    length is known: they see that bytes are missing. Those that want all of it get an exception.
    """

    def __init__(self, stream, length=None):
        self._stream = stream
        self._position = 0
        self._is_counted = length is not None

    def readable(self):
        return True

    def tell(self):
        return self._position

    def read(self, amt=None):
        """Up to `amt` bytes, fewer only at the end; all of them without it."""
        stream = self._stream
        if stream is None or amt == 0:
            return b""
        left = -1 if amt is None or amt < 0 else amt
        window = stream.window if left < 0 else self._window
        with stream.lock:
            view = window()
            if view is None:
                return b""
            if 0 < left <= len(view):
                data = bytes(view[:left])
                stream.advance(left)
            else:
                data = _gather(stream, view, left, window)
        self._position += len(data)
        return data

    def readinto(self, b):
        """Fills `b` as far as the body goes; how many bytes that were."""
        stream = self._stream
        if stream is None:
            return 0
        target = memoryview(b).cast("B")
        at = 0
        with stream.lock:
            while at < len(target):
                view = self._window()
                if view is None:
                    break
                size = min(len(view), len(target) - at)
                target[at : at + size] = view[:size]
                at += size
                stream.advance(size)
        self._position += at
        return at

    def _window(self):
        """The available bytes; None at the end, even if the end is premature."""
        try:
            return self._stream.window()
        except ResponseStreamingError as error:
            if not self._is_counted or not error.ended:
                raise
            return None

    def windows(self):
        """Everything that is left, as views of the host's slots; each is good until the next."""
        stream = self._stream
        while stream is not None:
            with stream.lock:
                view = stream.window()
                if view is None:
                    return
                yield view
                self._position += len(view)
                size = len(view)
                del view
                stream.advance(size)

    def stream(self, amt=65536, decode_content=None):
        """Pieces of `amt` bytes."""
        while True:
            data = self.read(amt)
            if not data:
                return
            yield data

    def readlines(self, hint=-1):
        return self.read().splitlines(True)

    def __iter__(self):
        pending = b""
        for chunk in self.stream():
            lines = (pending + chunk).split(b"\n")
            pending = lines.pop()
            for line in lines:
                yield line + b"\n"
        if pending:
            yield pending

    def close(self):
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()
        super().close()


def _gather(stream, view, left, window):
    """The bytes of several pieces; all where `left` is negative."""
    out = BytesIO()
    while view is not None and left:
        size = len(view) if left < 0 else min(left, len(view))
        out.write(view[:size])
        view = None
        stream.advance(size)
        left -= size if left > 0 else 0
        if left:
            view = window()
    return out.getvalue()


class StreamingBody(IOBase):
    """botocore's body of a response."""

    _DEFAULT_CHUNK_SIZE = 1024

    def __init__(self, raw_stream, content_length):
        self._raw_stream = raw_stream
        self._content_length = content_length
        self._amount_read = 0

    def __del__(self):
        # IOBase would close: a body may outlive what wraps it.
        return None

    def set_socket_timeout(self, timeout):
        """The host's affair: there is no socket here. Accepted, as a function may ask for it."""

    def readable(self):
        return getattr(self._raw_stream, "readable", bool)()

    def read(self, amt=None):
        """At most `amt` bytes; all that is left without it."""
        data = self._raw_stream.read(amt)
        self._amount_read += len(data)
        if amt is None or (not data and amt > 0):
            self._verify_content_length()
        return data

    def readinto(self, b):
        """Reads into `b`; how many bytes that were."""
        number = self._raw_stream.readinto(b)
        self._amount_read += number
        if number == 0 and len(b) > 0:
            self._verify_content_length()
        return number

    def readlines(self):
        return self._raw_stream.readlines()

    def __iter__(self):
        return self.iter_chunks(self._DEFAULT_CHUNK_SIZE)

    def __next__(self):
        data = self.read(self._DEFAULT_CHUNK_SIZE)
        if not data:
            raise StopIteration
        return data

    next = __next__

    def __enter__(self):
        return self._raw_stream

    def __exit__(self, type, value, traceback):
        self._raw_stream.close()

    def iter_chunks(self, chunk_size=_DEFAULT_CHUNK_SIZE):
        """Pieces of `chunk_size` bytes."""
        data = self.read(chunk_size)
        while data != b"":
            yield data
            data = self.read(chunk_size)

    def iter_lines(self, chunk_size=_DEFAULT_CHUNK_SIZE, keepends=False):
        """Lines, without their ends unless `keepends`; read `chunk_size` bytes at a time."""
        rest = b""
        for data in self.iter_chunks(chunk_size):
            lines = (rest + data).splitlines(True)
            rest = lines.pop()
            for line in lines:
                yield line if keepends else line.splitlines()[0]
        if rest:
            yield rest if keepends else rest.splitlines()[0]

    def _verify_content_length(self):
        expected = self._content_length
        if expected is not None and self._amount_read != int(expected):
            raise IncompleteReadError(actual_bytes=self._amount_read, expected_bytes=int(expected))

    def tell(self):
        return self._raw_stream.tell()

    def close(self):
        self._raw_stream.close()


class StreamingChecksumBody(StreamingBody):
    """A body whose checksum the host has compared, or compares while it is read."""


StreamingBody.__module__ = "botocore.response"
StreamingChecksumBody.__module__ = "botocore.httpchecksum"
