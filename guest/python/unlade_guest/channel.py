"""The channel to the host: greeting, frames, bells; submissions out, completions in.

Any thread may submit. Of the threads that wait, one *leads*: it alone takes completions and reads
the channel, and wakes the others when theirs have come. Nothing spins while it holds the
interpreter's lock for longer than `SPIN_POLLS` looks at the ring.
"""

import os
from _collections import deque
from _thread import allocate_lock
from struct import Struct
from time import sleep

from . import region as memory
from .descriptors import (
    BODY,
    CALL,
    CANCEL,
    COMPLETION,
    MORE,
    PART,
    READ,
    RELEASE,
    SUBMISSION,
    Call,
    Completion,
)
from .frames import (
    BELL,
    BYE,
    HELLO,
    INVOKE,
    REPLY,
    WELCOME,
    VERSION,
    Frames,
    broken,
    receive_greeting,
)
from .leader import LeaderElection
from .region import DESCRIPTOR_BYTES, META_ALIGN_BYTES

SPIN_POLLS = 100
RING_FULL_WAIT_S = 0.0002
RELEASES_HELD_MAX = 8


class ChannelLost(Exception):
    """The host is gone, or broke the protocol; every call in flight fails with this."""


class Channel(LeaderElection):
    """One instance's channel. It belongs to the process that said HELLO on it."""

    def __init__(self, descriptor, region=None):
        self.descriptor = descriptor
        self.process = os.getpid()
        self.region = region
        self.invocations = deque()
        self.dead = None
        self._frames = Frames(descriptor)
        super().__init__()
        self._fence = allocate_lock()
        self._calls = {}
        self._number = 0
        self._tail = 0
        self._taken = 0
        self._expected = 0
        self._releases = []
        self._epoch = 0

    def greet(self):
        """Says HELLO and maps what WELCOME brings.

        Raises ChannelLost where the host refuses, RegionError where its region is wrong.
        """
        nonce = int.from_bytes(os.urandom(8), "little")
        self._frames.send(HELLO, Struct("<HHQ").pack(VERSION, 0, nonce))
        content, descriptor, rest = receive_greeting(self._frames, WELCOME)
        version, _, echoed, epoch, size = Struct("<HHQQQ").unpack(content)
        if version != VERSION or echoed != nonce:
            raise ChannelLost("the host greeted another guest, or in another version")
        if descriptor >= 0:
            self.region = memory.map_descriptor(descriptor, size)
        elif self.region is None:
            self.region = memory.map_physical(os.environ.get("UNLADE_REGION", ""), size)
        if self.region.epoch != epoch:
            raise ChannelLost("the region has another epoch than the greeting")
        self._epoch = epoch & 0xFFFFFFFF
        words = self.region.words
        self._tail = words[memory.SUBMISSION_TAIL]
        self._taken = words[memory.COMPLETION_TAIL]
        self._hear(rest)
        return self

    # Out: descriptors and frames. All of these want the lock.

    def _push(self, number, operation, flags, meta, slot, body_bytes, token):
        region = self.region
        words = region.words
        entries = region.submission_entries
        while (self._tail - words[memory.SUBMISSION_HEAD]) & 0xFFFFFFFF >= entries:
            self._check()
            self._ring()
            self._lock.release()
            try:
                sleep(RING_FULL_WAIT_S)
            finally:
                self._lock.acquire()
        at = region.submission_offset + (self._tail & (entries - 1)) * DESCRIPTOR_BYTES
        SUBMISSION.pack_into(
            region.bytes, at, number, operation, flags, self._epoch, *meta, slot, body_bytes, token
        )
        self._barrier()
        self._tail = (self._tail + 1) & 0xFFFFFFFF
        words[memory.SUBMISSION_TAIL] = self._tail

    def _barrier(self):
        """Orders what was written before against what is read and written after.

        A release of a lock and the acquisition that follows it are not reordered on the
        processors that this runs on, nor is anything moved across both.
        """
        fence = self._fence
        fence.acquire()
        fence.release()
        fence.acquire()
        fence.release()

    def _ring(self):
        self._barrier()
        if self.region.words[memory.HOST_SLEEPS]:
            self._send(BELL, b"")

    def _send(self, kind, content):
        try:
            self._frames.send(kind, content)
        except OSError as error:
            if not broken(error):
                raise
            self._die("the host closed the channel (%s)" % error)
            raise ChannelLost(self.dead) from None

    def _flush(self):
        """Gives held tokens back, in front of whatever comes next."""
        while self._releases:
            self._push(0, RELEASE, 0, (0, 0), 0, 0, self._releases.pop())

    def _check(self):
        if self.dead is not None:
            raise ChannelLost(self.dead)
        if self.process != os.getpid():
            raise ChannelLost("this process was forked: the channel is its parent's")

    def _new(self, operation, flags, meta, extents, body_bytes, token):
        """Submits a call of any kind."""
        self._number += 1
        call = Call(self._number)
        call.meta = meta
        call.expected = 2 if flags & MORE else 1  # `_reserve` has counted them
        if extents:
            call.parts.append(extents)
        self._calls[call.number] = call
        where = (meta[0] * META_ALIGN_BYTES, meta[2]) if meta else (0, 0)
        try:
            self._flush()
            slot = extents[0] if extents else 0
            self._push(call.number, operation, flags, where, slot, body_bytes, token)
        except BaseException:
            self._free(self._calls.pop(call.number))
            raise
        try:
            self._ring()
        except BaseException:
            call.abandoned = True  # a signal's: nobody has it to wait for
            if self.dead is None:
                self._push(call.number, CANCEL, 0, (0, 0), 0, 0, 0)
            raise
        return call

    # The interface for the layers above.

    def submit(self, pieces, extents=None, body_bytes=0, more=False, operation=CALL):
        """Submits a CALL, or a REQUEST, whose meta are `pieces`; its body is in `extents` of taken slots, which
        are free again where it raises."""
        total = sum(map(len, pieces))
        units = -(-total // META_ALIGN_BYTES)
        try:
            if units > self.region.meta.units:
                raise ValueError("the call's parameters have %d bytes: too many" % total)
            first = self._reserve(lambda: self.region.meta.take(units), 2 if more else 1)
        except BaseException:
            if extents:
                self.give_slots(extents)
            raise
        with self._lock:
            self.region.put_meta(first, pieces)
            meta = (first, units, total)
            return self._new(operation, MORE if more else 0, meta, extents, body_bytes, 0)

    def submit_body(self, call, extents, body_bytes, more):
        """The next piece of a call's body; False where the call has ended meanwhile."""
        try:
            self._reserve(lambda: 0, 1)
        except BaseException:
            self.give_slots(extents)
            raise
        with self._lock:
            if call.completion is not None or self.dead is not None:
                self.region.slots.give(*extents)
                self._expected -= 1
                return False
            call.parts.append(extents)
            call.expected += 1
            flags = MORE if more else 0
            self._push(call.number, BODY, flags, (0, 0), extents[0], body_bytes, 0)
            self._ring()
            return True

    def submit_read(self, token, wanted):
        """Asks for the next piece of a body; the piece before is the host's again."""
        self._reserve(lambda: 0, 1)
        with self._lock:
            return self._new(READ, 0, None, None, wanted, token)

    def take_slots(self, count, call=None):
        """`(first, number)`: 1 to `count` neighbouring slots; waits for one.

        Where `call` ends meanwhile, nothing: `(-1, 0)`.
        """
        taken = (-1, 0)

        def ready():
            nonlocal taken
            if call is not None and call.completion is not None:
                return True
            taken = self.region.slots.take_most(count)
            return taken[1] > 0

        try:
            self._wait(ready)
        except BaseException:
            if taken[1]:
                self.give_slots(taken)
            raise
        return taken

    def give_slots(self, extents):
        """Slots that were taken and not submitted."""
        with self._lock:
            self.region.slots.give(*extents)

    def finish(self, call):
        """Waits for a call's completion. An exception (a signal's) cancels the call."""
        try:
            self._wait(lambda: call.completion is not None)
        except BaseException:
            self.abandon(call)
            raise
        return call.completion

    def done(self, call):
        """True if `finish` would return at once."""
        return call.completion is not None or self.dead is not None

    def abandon(self, call):
        """Nobody waits for this call any more; what it holds is freed when it ends."""
        with self._lock:
            call.abandoned = True
            if call.completion is not None:
                self._forget(call.completion)
            elif self.dead is None and self.process == os.getpid():
                self._push(call.number, CANCEL, 0, (0, 0), 0, 0, 0)
                self._ring()

    def release(self, token, unread=False):
        """Gives a token's slots and meta back; at the latest with the next submission.

        At once where a call is in flight, which may wait for room, or where the host keeps a
        connection for what is `unread`. To ring for each would cost both sides a wake-up.
        """
        if self.dead is not None or self.process != os.getpid():
            return
        # A finaliser may run this inside the lock of its own thread: then it is left for later.
        self._releases.append(token)
        if unread or self._calls or len(self._releases) >= RELEASES_HELD_MAX:
            if self._lock.acquire(False):
                try:
                    self._flush()
                    self._ring()
                except ChannelLost:
                    self._releases.clear()
                finally:
                    self._lock.release()

    def next_invocation(self):
        """Waits for an INVOKE: its content. ChannelLost at the channel's end."""
        self._wait(lambda: bool(self.invocations))
        return self.invocations.popleft()

    def reply(self, content):
        """Sends a REPLY, after every RELEASE that is still held: it wakes the host for these, too."""
        with self._lock:
            self._flush()
            self._send(REPLY, content)

    def close(self):
        """Ends the channel in this process."""
        self._die("the channel was closed")
        self._frames.close()

    # In: completions and frames.

    def _reserve(self, take, completions):
        """Waits until `take()` gives something and the completion ring has room; counts them."""
        found = -1

        def ready():
            nonlocal found
            if self._expected + completions > self.region.completion_entries:
                return False
            found = take()
            if found < 0:
                return False
            self._expected += completions
            return True

        self._wait(ready)
        return found

    def _before_wait(self):
        """Nobody sleeps while the host waits for something that is held here."""
        self._check()
        if self._releases:
            self._flush()
            self._ring()

    def _step(self):
        """Takes what is there; sleeps in the channel where nothing is."""
        words = self.region.words
        for _ in range(SPIN_POLLS):
            if words[memory.COMPLETION_TAIL] != self._taken:
                return self._take()
        words[memory.GUEST_SLEEPS] = 1
        try:
            self._barrier()
            if words[memory.COMPLETION_TAIL] == self._taken:
                self._listen()
        finally:
            words[memory.GUEST_SLEEPS] = 0
        return self._take()

    def _listen(self):
        """Blocks for frames."""
        try:
            frames = self._frames.receive()
        except OSError as error:
            if not broken(error):
                raise  # a signal's handler raised it
            return self._die("the host closed the channel (%s)" % error)
        if frames is None:
            return self._die("the host closed the channel")
        return self._hear(frames)

    def _hear(self, frames):
        """Processes received frames."""
        for kind, content in frames:
            if kind == INVOKE:
                self.invocations.append(content)
            elif kind == BYE:
                self._die("the host ended the channel: " + content.decode("utf-8", "replace"))
            elif kind != BELL:
                self._die("the host sent a frame of kind %d" % kind)

    def _take(self):
        """Moves completions from the ring to their calls."""
        region = self.region
        words = region.words
        with self._lock:
            tail = words[memory.COMPLETION_TAIL]
            if (tail - self._taken) & 0xFFFFFFFF > region.completion_entries:
                return self._die("the host completed more than its ring has")
            self._barrier()
            while self._taken != tail:
                slot = self._taken & (region.completion_entries - 1)
                fields = COMPLETION.unpack_from(
                    region.bytes, region.completion_offset + slot * DESCRIPTOR_BYTES
                )
                self._taken = (self._taken + 1) & 0xFFFFFFFF
                self._settle(fields)
            self._barrier()
            words[memory.COMPLETION_HEAD] = self._taken

    def _settle(self, fields):
        number, status, flags, epoch, meta, meta_bytes, slot, body_bytes, token, left = fields
        call = self._calls.get(number)
        if call is None or epoch != self._epoch:
            return self._die("the host completed a call that was not made")
        if flags & PART:
            if call.parts:
                self.region.slots.give(*call.parts.popleft())
            call.expected -= 1
            self._expected -= 1
            return None
        del self._calls[number]
        self._free(call)
        try:
            text = self.region.host_meta(meta, meta_bytes) if meta_bytes else b""
        except memory.RegionError as error:
            return self._die(str(error))
        call.completion = Completion(status, flags, text, slot, body_bytes, token, left)
        if call.abandoned:
            self._forget(call.completion)
        return None

    def _free(self, call):
        """Releases the guest's resources of a call."""
        self._expected -= call.expected
        call.expected = 0
        while call.parts:
            self.region.slots.give(*call.parts.popleft())
        if call.meta:
            self.region.meta.give(call.meta[0], call.meta[1])
            call.meta = None

    def _forget(self, completion):
        if completion.token:
            self._releases.append(completion.token)

    def _die(self, why):
        if self.dead is None:
            self.dead = why
