"""Bodies to send: something with a length that fills memory, once or again."""

import os

UNSEEKABLE_CHUNK_BYTES = 1 << 20


class Octets:
    """A body in memory."""

    __slots__ = ("length", "_view", "_at")

    def __init__(self, data):
        self._view = memoryview(data).cast("B") if data else memoryview(b"")
        self.length = len(self._view)
        self._at = 0

    def fill(self, target):
        """Copies the next bytes, as many as `target` has."""
        end = self._at + len(target)
        target[:] = self._view[self._at : end]
        self._at = end

    def rewind(self):
        """Begins again."""
        self._at = 0


class File:
    """A body in a file: `length` bytes from `start`, or where it stands.

    `seen` hears how many bytes were read.
    """

    __slots__ = ("length", "_file", "_start", "_seen", "_left")

    def __init__(self, file, length, seen=None, start=None):
        self._file = file
        self.length = length
        self._left = length
        self._start = file.tell() if start is None else start
        self._seen = seen

    def fill(self, target):
        """Reads exactly as many bytes as `target` has."""
        size = len(target)
        at = 0
        if self._left == self.length and self._file.tell() != self._start:
            self._file.seek(self._start)
        while at < size:
            number = _read_into(self._file, target[at:] if at else target)
            if not number:
                raise EOFError("the body ended %d bytes early" % (self._left - at))
            at += number
        self._left -= size
        if self._seen is not None:
            self._seen(size)

    def rewind(self):
        """Begins again. UnseekableStreamError where the file cannot."""
        if self._seen is not None:
            self._seen(self._left - self.length)
        try:
            self._file.seek(self._start)
        except Exception:
            raise _unseekable(self._file) from None
        self._left = self.length


class Pipe:
    """A body that is read once: as many bytes as its sender has announced."""

    __slots__ = ("length", "_file", "_left")

    def __init__(self, file, length):
        self.length = self._left = length
        self._file = file

    def fill(self, target):
        """Reads exactly as many bytes as `target` has."""
        at = 0
        while at < len(target):
            number = _read_into(self._file, target[at:] if at else target)
            if not number:
                raise EOFError("the body ended %d bytes early" % (self._left - at))
            at += number
        self._left -= at

    def rewind(self):
        """UnseekableStreamError, unless nothing was read."""
        if self._left != self.length:
            raise _unseekable(self._file)


def _unseekable(file):
    from .errors import UnseekableStreamError

    return UnseekableStreamError(stream_object=file)


def _read_into(file, target):
    """Reads into memory where that is sure to give what `read` does: it is `read` that an SDK
    asks, and a function's own class may have only that."""
    own = type(file).__module__ == "_io" and "read" not in getattr(file, "__dict__", ())
    if own and hasattr(file, "readinto"):
        return file.readinto(target) or 0
    data = file.read(len(target))
    if isinstance(data, str):
        data = data.encode()
    if len(data) > len(target):
        raise ValueError("read() gave more bytes than were asked for")
    target[: len(data)] = data
    return len(data)


def length_of(file):
    """Bytes between where a file stands and its end; None where it cannot say."""
    if hasattr(file, "__len__"):
        return len(file)
    try:
        here = file.tell()
        file.seek(0, os.SEEK_END)
        end = file.tell()
        file.seek(here)
        return end - here
    except (AttributeError, OSError, ValueError):
        return None


def of(value, announced=None):
    """The body that a caller's `Body` is; `announced` bytes where it cannot say how many."""
    if isinstance(value, str):
        return Octets(value.encode())
    if isinstance(value, (bytes, bytearray, memoryview)):
        return Octets(value)
    length = length_of(value)
    if length is not None:
        return File(value, length)
    if announced is not None:
        return Pipe(value, announced)
    pieces = []
    while True:
        piece = value.read(UNSEEKABLE_CHUNK_BYTES)
        if not piece:
            return Octets(b"".join(pieces))
        pieces.append(piece.encode() if isinstance(piece, str) else piece)
