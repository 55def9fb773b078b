"""Frames of the channel: `u32` bytes of what follows, `u8` kind, content.

`os.read` and `os.write` do for everything but the greeting, which brings a descriptor; the module
`_socket` does that without what `socket` loads around it.
"""

import os
from errno import EBADF, ECONNRESET, EIO, ENOTCONN, ENOTSOCK, EPIPE
from struct import Struct

HELLO, WELCOME, BELL, INVOKE, REPLY, BYE = 1, 2, 3, 4, 5, 6
VERSION = 1
FRAME_BYTES_MAX = 64 * 1024
HEAD = Struct("<IB")
DESCRIPTORS_MAX = 12


class FrameError(OSError):
    """The other side sent what is no frame: it is at fault, and the channel ends."""


def broken(error):
    """True if an error is the channel's; a signal handler may raise an OSError, too."""
    return isinstance(error, FrameError) or error.errno in (
        EBADF,
        ECONNRESET,
        EIO,
        ENOTCONN,
        EPIPE,
    )


class Frames:
    """Frames over a descriptor."""

    def __init__(self, descriptor):
        self.descriptor = descriptor
        self._pending = bytearray()

    def send(self, kind, content):
        """Sends one frame, whole."""
        if len(content) + 1 > FRAME_BYTES_MAX:
            raise FrameError("a frame of %d bytes is too long" % len(content))
        data = HEAD.pack(len(content) + 1, kind) + content
        sent = os.write(self.descriptor, data)
        while sent < len(data):
            sent += os.write(self.descriptor, data[sent:])

    def receive(self):
        """Blocks for bytes; the frames that are whole now, or None at the end."""
        data = os.read(self.descriptor, FRAME_BYTES_MAX)
        if not data:
            return None
        return self.feed(data)

    def feed(self, data):
        """The frames that are whole with these bytes."""
        pending = self._pending
        pending += data
        frames = []
        at = 0
        while len(pending) - at >= HEAD.size:
            length, kind = HEAD.unpack_from(pending, at)
            if not 1 <= length <= FRAME_BYTES_MAX:
                raise FrameError("a frame of %d bytes" % length)
            if len(pending) - at < 4 + length:
                break
            frames.append((kind, bytes(pending[at + 5 : at + 4 + length])))
            at += 4 + length
        del pending[:at]
        return frames

    def close(self):
        """Closes the descriptor."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def receive_descriptors(descriptor):
    """`(bytes, descriptors)` of one message of a Unix socket; no bytes at its end."""
    try:
        import _socket as sockets
    except ImportError:
        import socket as sockets
    end = sockets.socket(fileno=os.dup(descriptor))
    try:
        item = Struct("i")
        space = sockets.CMSG_SPACE(DESCRIPTORS_MAX * item.size)
        data, ancillary, _, _ = end.recvmsg(FRAME_BYTES_MAX, space, sockets.MSG_CMSG_CLOEXEC)
    finally:
        end.close()
    found = []
    for level, kind, content in ancillary:
        if level == sockets.SOL_SOCKET and kind == sockets.SCM_RIGHTS:
            whole = len(content) - len(content) % item.size
            found += [value for (value,) in item.iter_unpack(content[:whole])]
    return data, found


def receive_greeting(frames, kind):
    """The content of the first frame, the descriptor beside it or -1, and the frames behind it."""
    descriptors = []
    try:
        while True:
            try:
                data, found = receive_descriptors(frames.descriptor)
                descriptors += found
            except OSError as error:
                if error.errno != ENOTSOCK:  # a serial port of a virtual machine
                    raise
                data = os.read(frames.descriptor, FRAME_BYTES_MAX)
            if not data:
                raise FrameError("the host closed the channel instead of greeting")
            whole = frames.feed(data)
            if whole:
                break
        (first, content), rest = whole[0], whole[1:]
        if first == BYE:
            raise FrameError("the host refused: " + content.decode("utf-8", "replace"))
        if first != kind:
            raise FrameError("the host greeted with a frame of kind %d" % first)
        return content, descriptors.pop(0) if descriptors else -1, rest
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
