"""What a restored machine does before its instance goes on. The whole of it runs in real machines:
`cargo test -p unlade-fn-sandbox --test qemu`."""

import fcntl
import mmap
import os
import struct
import time

import pytest
from unlade_guest import machine, region


def test_a_line_is_read_however_it_comes():
    reader, writer = os.pipe()
    os.write(writer, b'{"time_ns"')
    os.write(writer, b": 1}\n")
    assert machine.read_line(reader) == b'{"time_ns": 1}\n'
    os.write(writer, b"x" * 8192)
    with pytest.raises(ValueError):
        machine.read_line(reader)
    os.close(reader)
    os.close(writer)
    reader, writer = os.pipe()
    os.close(writer)
    with pytest.raises(EOFError):
        machine.read_line(reader)
    os.close(reader)


def test_time_and_randomness_are_those_of_the_host(monkeypatch):
    clocks, asked = [], []
    monkeypatch.setattr(time, "clock_settime_ns", lambda clock, value: clocks.append(value))
    monkeypatch.setattr(fcntl, "ioctl", lambda fd, request, data=b"": asked.append((request, data)))
    entropy = bytes(range(64))
    machine.resume({"time_ns": 1_700_000_000_000_000_000, "entropy": entropy.hex()})
    assert clocks == [1_700_000_000_000_000_000]
    # struct rand_pool_info: bits that count, bytes, the bytes (random(4)).
    added = struct.pack("ii", 512, 64) + entropy
    assert asked == [(machine.RNDADDENTROPY, added), (machine.RNDRESEEDCRNG, b"")]
    with pytest.raises(ValueError):
        machine.resume({"time_ns": 1, "entropy": "00"})


def test_a_region_is_used_where_it_was_mapped_before(monkeypatch):
    monkeypatch.setattr(region._Adopted, "mapping", None)
    mapping = mmap.mmap(-1, 1 << 20)
    region.adopt(mapping)
    # The header of nobody: the mapping was looked at, and /dev/mem was not opened.
    with pytest.raises(region.RegionError, match="magic"):
        region.map_physical("phys:0x8000000:1048576", 1 << 20)
    with pytest.raises(region.RegionError, match="larger"):
        region.map_physical("phys:0x8000000:1048576", 1 << 21)
    for place in ("", "phys:1", "virt:1:2"):
        with pytest.raises(region.RegionError, match="phys:ADDRESS:BYTES"):
            region.map_physical(place, 1)
