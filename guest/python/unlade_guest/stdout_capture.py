"""Capture of a function's output: forwards it, and keeps its end for the reply."""

import sys
from io import TextIOBase

TAIL_BYTES_MAX = 4096


class OutputTail:
    """The last bytes that went through any of its streams."""

    def __init__(self):
        self._kept = bytearray()

    def add(self, text):
        """Keeps the end of it."""
        self._kept += text[-TAIL_BYTES_MAX:].encode("utf-8", "replace")
        if len(self._kept) > 4 * TAIL_BYTES_MAX:
            del self._kept[:-TAIL_BYTES_MAX]

    def take(self):
        """The tail, and an empty one from now on."""
        kept = bytes(self._kept[-TAIL_BYTES_MAX:])
        self._kept.clear()
        return kept.decode("utf-8", "ignore")


class Stream(TextIOBase):
    """`sys.stdout` or `sys.stderr`, with a tail."""

    def __init__(self, inner, tail):
        self._inner = inner
        self._tail = tail

    def write(self, text):
        self._tail.add(text)
        return self._inner.write(text)

    def flush(self):
        self._inner.flush()

    def writable(self):
        return True

    def fileno(self):
        return self._inner.fileno()

    def isatty(self):
        return False

    @property
    def encoding(self):
        return self._inner.encoding

    @property
    def buffer(self):
        return self._inner.buffer


def install():
    """Puts a tail behind what the function prints."""
    tail = OutputTail()
    sys.stdout = Stream(sys.stdout, tail)
    sys.stderr = Stream(sys.stderr, tail)
    return tail


def logging(context):
    """Gives a function that logs what Lambda gives it: one handler at the root, with the id."""
    module = sys.modules.get("logging")
    if module is None:
        return
    root = module.getLogger()
    found = next((h for h in root.handlers if getattr(h, "unlade", False)), None)
    if found is None:
        if root.handlers:
            return
        found = module.StreamHandler(_Current())
        found.unlade = True
        found.setFormatter(
            module.Formatter(
                "[%(levelname)s]\t%(asctime)s.%(msecs)03dZ\t%(aws_request_id)s\t%(message)s",
                "%Y-%m-%dT%H:%M:%S",
            )
        )
        found.addFilter(_with_id)
        root.addHandler(found)
    _Current.request = context.aws_request_id


def _with_id(record):
    record.aws_request_id = _Current.request
    return True


class _Current:
    """Whatever `sys.stdout` is at the time."""

    request = ""

    def write(self, text):
        sys.stdout.write(text)

    def flush(self):
        sys.stdout.flush()
