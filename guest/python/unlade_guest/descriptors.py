"""Descriptors of the rings: 64 bytes each, and what the guest remembers of a call."""

from _collections import deque
from struct import Struct

CALL, BODY, READ, RELEASE, CANCEL, REQUEST = 1, 2, 3, 4, 5, 6
MORE, PART, PREFETCHED, PENDING, AGAIN = 1, 2, 4, 8, 16
DONE, SERVICE_ERROR, HOST_ERROR, REFUSED = 0, 1, 2, 3

SUBMISSION = Struct("<QHHIIIIIQ24x")
COMPLETION = Struct("<QHHIIIIIQQ16x")
REFUSALS_MAX = 200
REFUSED_WAIT_S = 0.005


class Call:
    """A submission that will be completed, and what it holds until then."""

    __slots__ = ("number", "completion", "meta", "parts", "expected", "abandoned")

    def __init__(self, number):
        self.number = number
        self.completion = None
        self.meta = None
        self.parts = deque()
        self.expected = 0
        self.abandoned = False


class Completion:
    """A completion: status, flags, meta's bytes, the body's slots and token."""

    __slots__ = ("status", "flags", "meta", "slot", "body_bytes", "token", "left")

    def __init__(self, status, flags, meta, slot, body_bytes, token, left):
        self.status = status
        self.flags = flags
        self.meta = meta
        self.slot = slot
        self.body_bytes = body_bytes
        self.token = token
        self.left = left
