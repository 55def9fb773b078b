"""The channel of this process: made when it is first needed, dropped by a fork."""

import os
from _thread import allocate_lock

from .channel import Channel, ChannelLost
from .frames import FrameError
from .region import RegionError


class _Current:
    """The connection state of this process; a forked child starts without it."""

    channel = None
    lock = allocate_lock()
    refusal = None


def refuse_by(refusal):
    """Calls `refusal` whenever somebody asks for the channel; None: no more (see `preload.py`)."""
    _Current.refusal = refusal


def connect(descriptor):
    """Greets the host on `descriptor`; this is the channel from now on."""
    try:
        _Current.channel = Channel(descriptor).greet()
    except (FrameError, RegionError, OSError) as error:
        raise ChannelLost("no greeting: %s" % error) from None
    return _Current.channel


def channel():
    """The channel, from `UNLADE_CHANNEL_FD` or `UNLADE_CHANNEL_PATH` at the first call.

    Raises ChannelLost where there is none.
    """
    found = _Current.channel
    if found is not None:
        return found
    if _Current.refusal is not None:
        _Current.refusal()
        raise ChannelLost("the host cannot be called while a module is imported for all instances")
    with _Current.lock:
        if _Current.channel is None:
            connect(_descriptor())
        return _Current.channel


def _descriptor():
    text = os.environ.get("UNLADE_CHANNEL_FD")
    if text is not None:
        return int(text)
    path = os.environ.get("UNLADE_CHANNEL_PATH")
    if path is None:
        raise ChannelLost(
            "there is no channel to a host: neither UNLADE_CHANNEL_FD nor UNLADE_CHANNEL_PATH "
            "is set in this process"
        )
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        raise ChannelLost("no channel at %s: %s" % (path, error)) from None


def reconnect():
    """Greets again where a channel's end can be opened again: a port of a virtual machine.

    None in a process sandbox: such an instance is replaced.
    """
    if "UNLADE_CHANNEL_PATH" not in os.environ:
        return None
    drop()
    return channel()


def drop():
    """Forgets the channel: after a fork, or where a snapshot was restored."""
    _Current.channel = None
    _Current.lock = allocate_lock()


def _forked():
    """A child that the function made has its parent's descriptor, and must not use it."""
    drop()
    _Current.refusal = None
    os.environ.pop("UNLADE_CHANNEL_FD", None)
    os.environ.pop("UNLADE_CHANNEL_PATH", None)


os.register_at_fork(after_in_child=_forked)
