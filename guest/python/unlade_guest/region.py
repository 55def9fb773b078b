"""The memory that guest and host share: its header, rings, arenas and slots.

Words that both sides look at are read and written by one instruction each (a `memoryview` of 32-bit
words). Bodies are `memoryview`s of the slots: filled and emptied without a copy between.
"""

import mmap
import os
import sys
from struct import Struct

MAGIC = b"UNLADEFN"
VERSION = 1
HEADER = Struct("<8sIIQQ4I4I5I")
DESCRIPTOR_BYTES = 64
REGION_BYTES_MAX = 1 << 31
META_ALIGN_BYTES = 64

# Words of the header, by their place in 32-bit units.
SUBMISSION_TAIL = 256 // 4
SUBMISSION_HEAD = 320 // 4
COMPLETION_TAIL = 384 // 4
COMPLETION_HEAD = 448 // 4
GUEST_SLEEPS = 512 // 4
HOST_SLEEPS = 576 // 4


class RegionError(Exception):
    """The host's region is not what the protocol says: the host is at fault."""


class Extents:
    """Allocator of runs of units: first fit, so that as few pages as possible are touched."""

    __slots__ = ("free", "units")

    def __init__(self, units):
        self.units = units
        self.free = [(0, units)] if units else []

    def take(self, count):
        """The first of `count` neighbours, or -1."""
        for at, (start, length) in enumerate(self.free):
            if length >= count:
                if length == count:
                    del self.free[at]
                else:
                    self.free[at] = (start + count, length - count)
                return start
        return -1

    def take_most(self, count):
        """`(first, number)` of at most `count` neighbours; number 0 where nothing is free."""
        longest = max((length for _, length in self.free), default=0)
        count = min(count, longest)
        return (self.take(count), count) if count else (-1, 0)

    def give(self, start, count):
        """Takes a run back, and joins it with its neighbours."""
        free = self.free
        at = 0
        while at < len(free) and free[at][0] < start:
            at += 1
        free.insert(at, (start, count))
        if at + 1 < len(free) and start + count == free[at + 1][0]:
            free[at] = (start, count + free.pop(at + 1)[1])
        if at and free[at - 1][0] + free[at - 1][1] == start:
            first, length = free[at - 1]
            free[at - 1] = (first, length + free.pop(at)[1])

    def idle(self):
        """True if all units are free."""
        return self.free == [(0, self.units)] or not self.units


class Region:
    """A mapped region whose header was checked."""

    def __init__(self, mapping, size):
        if sys.byteorder != "little":
            raise RegionError("the protocol's words are little-endian; this machine is not")
        self._mapping = mapping
        self.bytes = memoryview(mapping)
        self.words = self.bytes.cast("I")
        (
            magic,
            version,
            header_bytes,
            self.epoch,
            region_bytes,
            self.submission_offset,
            self.submission_entries,
            self.completion_offset,
            self.completion_entries,
            self.guest_meta_offset,
            self.guest_meta_bytes,
            self.host_meta_offset,
            self.host_meta_bytes,
            self.guest_slots_offset,
            self.guest_slots,
            self.host_slots_offset,
            self.host_slots,
            self.slot_bytes,
        ) = HEADER.unpack_from(self.bytes, 0)
        if magic != MAGIC or version != VERSION:
            raise RegionError("the region has another magic or version")
        if region_bytes != size or header_bytes > size:
            raise RegionError("the region has another size than the greeting said")
        self._check(size)
        self.meta = Extents(self.guest_meta_bytes // META_ALIGN_BYTES)
        self.slots = Extents(self.guest_slots)

    def _check(self, size):
        for offset, length in (
            (self.submission_offset, self.submission_entries * DESCRIPTOR_BYTES),
            (self.completion_offset, self.completion_entries * DESCRIPTOR_BYTES),
            (self.guest_meta_offset, self.guest_meta_bytes),
            (self.host_meta_offset, self.host_meta_bytes),
            (self.guest_slots_offset, self.guest_slots * self.slot_bytes),
            (self.host_slots_offset, self.host_slots * self.slot_bytes),
        ):
            if offset + length > size:
                raise RegionError("a part of the region lies outside it")
        for entries in (self.submission_entries, self.completion_entries):
            if not entries or entries & (entries - 1):
                raise RegionError("a ring's entries are no power of two")
        if not self.slot_bytes or not self.guest_slots:
            raise RegionError("the region has no slots for the guest")

    def guest_view(self, slot, length):
        """The bytes of a run of the guest's slots."""
        start = self.guest_slots_offset + slot * self.slot_bytes
        return self.bytes[start : start + length]

    def host_view(self, slot, length):
        """The bytes of a run of the host's slots."""
        if slot * self.slot_bytes + length > self.host_slots * self.slot_bytes:
            raise RegionError("the host named slots that it does not have")
        start = self.host_slots_offset + slot * self.slot_bytes
        return self.bytes[start : start + length]

    def host_meta(self, offset, length):
        """A copy of a piece of the host's arena."""
        if offset + length > self.host_meta_bytes:
            raise RegionError("the host named meta outside its arena")
        start = self.host_meta_offset + offset
        return bytes(self.bytes[start : start + length])

    def put_meta(self, first, pieces):
        """Writes bytes into the guest's arena, from unit `first` on; its offset and length."""
        offset = first * META_ALIGN_BYTES
        at = self.guest_meta_offset + offset
        total = 0
        for piece in pieces:
            self.bytes[at + total : at + total + len(piece)] = piece
            total += len(piece)
        return offset, total

    def close(self):
        """Unmaps where nothing looks at it any more; else the last body does it."""
        try:
            self.words.release()
            self.bytes.release()
            self._mapping.close()
        except BufferError:
            self._mapping = None


def map_descriptor(descriptor, size):
    """The region in a descriptor that came with the greeting; closes it."""
    try:
        if not 0 < size <= REGION_BYTES_MAX or os.fstat(descriptor).st_size < size:
            raise RegionError("the region's descriptor is shorter than the greeting said")
        return Region(mmap.mmap(descriptor, size, mmap.MAP_SHARED), size)
    finally:
        os.close(descriptor)


class _Adopted:
    """The region's mapping, where it was made before this process lost the right to make it."""

    mapping = None


def adopt(mapping):
    """Uses `mapping` of `UNLADE_REGION` from now on."""
    _Adopted.mapping = mapping


def _place(text):
    kind, _, rest = text.partition(":")
    address, _, length = rest.partition(":")
    if kind != "phys" or not length:
        raise RegionError("UNLADE_REGION must be phys:ADDRESS:BYTES, not %r" % text)
    return int(address, 0), int(length, 0)


def map_device(place):
    """All of the memory at `phys:ADDRESS:BYTES`, in a virtual machine. Wants its root's rights."""
    address, length = _place(place)
    descriptor = os.open("/dev/mem", os.O_RDWR | os.O_CLOEXEC)
    try:
        # Without O_SYNC: it is memory, and is to be cached.
        return mmap.mmap(descriptor, length, mmap.MAP_SHARED, offset=address)
    finally:
        os.close(descriptor)


def map_physical(place, size):
    """The region at `phys:ADDRESS:BYTES`: the mapping that was adopted, or a new one."""
    if _place(place)[1] < size:
        raise RegionError("the region is larger than UNLADE_REGION: %d bytes" % size)
    return Region(_Adopted.mapping or map_device(place), size)
