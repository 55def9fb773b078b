"""The channel and the region, against a host in this process."""

import os
import random
import threading
import time

import pytest

from unlade_guest import calls, source
from unlade_guest.body import RawBody
from unlade_guest.errors import HostError, ReadTimeoutError
from unlade_guest.region import Extents
from unlade_guest.text import decode, dumps, encode, loads

SEED = int(os.environ.get("GUEST_SEED", random.randrange(1 << 32)))


def idle(served, link):
    """Waits until the host has everything back."""
    for _ in range(1000):
        link._take()
        with link._lock:
            link._flush()
            link._ring()
        if served.session.idle() and link.region.meta.idle() and link.region.slots.idle():
            return True
        time.sleep(0.01)
    return False


def put(key, data):
    return calls.perform("s3", "PutObject", {"Key": key}, source.Octets(data))


def get(key):
    answer = calls.perform("s3", "GetObject", {"Key": key}, streaming=True)
    return RawBody(answer.stream).read()


@pytest.mark.parametrize("size", [0, 1, 4096, 4097, 65536, 65537, 1 << 20, 9 << 20])
def test_bodies_come_back_and_nothing_is_kept(served, link, store, size):
    data = random.Random(size).randbytes(size)
    put("k", data)
    assert store.objects["k"] == data
    assert get("k") == data
    assert idle(served, link)
    assert not served.session.log


def test_threads_share_the_channel(served, link, store):
    failures = []

    def work(index):
        data = random.Random(index).randbytes(index * 40_000)
        for _ in range(5):
            put("k%d" % index, data)
            if get("k%d" % index) != data:
                failures.append(index)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    assert len(store.calls) == 12 * 10
    assert idle(served, link)


def test_unread_bodies_do_not_use_up_the_host(served, link):
    put("k", b"x" * 300_000)
    answers = [calls.perform("s3", "GetObject", {"Key": "k"}, streaming=True) for _ in range(40)]
    assert all(len(RawBody(answer.stream).read()) == 300_000 for answer in answers)
    assert idle(served, link)


def test_dropped_bodies_are_released(served, link):
    put("k", b"x" * 1_000_000)
    for _ in range(50):
        answer = calls.perform("s3", "GetObject", {"Key": "k"}, streaming=True)
        RawBody(answer.stream).read(10)
        del answer
    assert idle(served, link)


def test_what_was_read_is_released_with_what_comes_next_and_what_was_not_at_once(served, link):
    put("k", b"x" * 9_000_000)
    put("small", b"x")
    assert get("small") == b"x"
    assert len(link._releases) == 1, "the GET brought that of the PUT"
    answer = calls.perform("s3", "GetObject", {"Key": "k"}, streaming=True)
    assert not link._releases
    answer.stream.close()
    assert not link._releases, "the host keeps a connection for the rest"
    assert idle(served, link)


def test_who_waits_is_given_room_at_once(served, link):
    put("k", b"x")
    answer = calls.perform("s3", "GetObject", {"Key": "k"}, streaming=True)
    with link._lock:
        link._calls[-1] = None  # another thread's
    assert RawBody(answer.stream).read() == b"x"
    with link._lock:
        del link._calls[-1]
    assert not link._releases


def test_errors_of_the_host(link):
    with pytest.raises(ReadTimeoutError):
        calls.perform("s3", "HeadObject", {"Key": "k"})
    with pytest.raises(HostError, match="Unsupported"):
        calls.perform("s3", "GetBucketCors", {})


def test_a_lost_host_ends_every_call(served, link):
    from unlade_guest.errors import ConnectionClosedError

    served.close()
    with pytest.raises(ConnectionClosedError):
        get("k")
    with pytest.raises(ConnectionClosedError):
        put("k", b"x")


def test_a_fork_does_not_use_its_parents_channel(link):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            get("k")
            os.write(writer, b"went")
        except Exception as error:
            os.write(writer, type(error).__name__.encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 100) == b"ConnectionClosedError"
    os.close(reader)
    os.close(writer)


def test_a_source_that_ends_early_cancels_its_call(served, link):
    import io

    class Short(io.BytesIO):
        def read(self, size=-1):
            return super().read(min(size, 1000)) if self.tell() < 2_000_000 else b""

    with pytest.raises(EOFError):
        calls.perform(
            "s3", "PutObject", {"Key": "k"}, source.File(Short(b"x" * 3_000_000), 3_000_000)
        )
    assert idle(served, link)
    put("k", b"after")
    assert get("k") == b"after"


def test_extents_against_a_bitmap():
    print("GUEST_SEED=%d" % SEED)
    dice = random.Random(SEED)
    extents, used, held = Extents(64), [False] * 64, []
    for _ in range(5000):
        if held and dice.random() < 0.5:
            start, count = held.pop(dice.randrange(len(held)))
            extents.give(start, count)
            used[start : start + count] = [False] * count
        else:
            count = dice.randint(1, 20)
            start = extents.take(count)
            fits = any(not any(used[at : at + count]) for at in range(65 - count))
            assert (start >= 0) == fits
            if start >= 0:
                assert not any(used[start : start + count])
                used[start : start + count] = [True] * count
                held.append((start, count))
        free = sum(length for _, length in extents.free)
        assert free == used.count(False)
    for extent in held:
        extents.give(*extent)
    assert extents.idle()


@pytest.mark.parametrize(
    "value",
    [None, True, 0, -5, 1.5, "", 'ü\0"\\', [], {}, [1, [2, {"a": None}]], {"k": "v" * 9000}],
)
def test_json_is_the_librarys(value):
    import json

    assert decode(encode(value)) == value == loads(json.dumps(value))
    assert dumps(value) == json.dumps(value)


@pytest.mark.parametrize("text", ["", "{", "[1,", "nul", '{"a":}', "1 2", '"open', "[1]]"])
def test_what_is_not_json_is_refused(text):
    with pytest.raises(ValueError):
        loads(text)


def test_instants_and_bytes():
    import datetime

    moment = datetime.datetime(2026, 1, 2, 3, 4, 5, 678000, datetime.timezone.utc)
    assert decode(encode({"a": moment, "b": b"\0\xff"})) == {"a": moment, "b": b"\0\xff"}
    assert decode('{"$instant": "2026-01-02T03:04:05Z"}').microsecond == 0


def test_what_is_refused_is_made_again(served, link, store, monkeypatch):
    refused = []
    perform = served.session.perform

    def refuse(call, upload):
        if len(refused) < 3:
            refused.append(call)
            served.session.push(call, 3, 0, 0, 0, 0, 0, 0, 0)
        else:
            perform(call, upload)

    monkeypatch.setattr(served.session, "perform", refuse)
    data = random.Random(1).randbytes(3_000_000)
    put("k", data)
    assert len(refused) == 3 and store.objects["k"] == data
    assert idle(served, link)


def test_more_calls_than_the_rings_have_entries(served, link, store):
    begun = [
        calls.begin("s3", "PutObject", {"Key": str(n)}, source.Octets(b"x")) for n in range(600)
    ]
    for call in begun:
        assert calls.collect(call).said["http_status"] == 200
    assert len(store.objects) == 600
    assert idle(served, link)


def test_an_exception_of_a_signal_handler_leaves_the_channel_whole(served, link, store):
    import signal

    go_on = threading.Event()
    get_object = store.get

    def slow(key):
        if not go_on.is_set():
            # Now the host has the call, and the guest waits, or soon will.
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            go_on.wait(30)
        return get_object(key)

    store.get = slow
    put("k", b"x" * 100_000)

    def ring(*_):
        raise TimeoutError("enough")

    before = signal.signal(signal.SIGALRM, ring)
    try:
        with pytest.raises(TimeoutError, match="enough"):
            get("k")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    go_on.set()
    assert get("k") == b"x" * 100_000
    assert idle(served, link)


def test_a_completion_for_nobody_ends_the_channel(served, link):
    from unlade_guest.errors import ConnectionClosedError

    served.session.push(999, 0, 0, 0, 0, 0, 0, 0, 0)
    with pytest.raises(ConnectionClosedError, match="a call that was not made"):
        get("k")


def once_more(served, link, monkeypatch, times, at=None):
    """Has the host ask for a body again so many times: when it is whole, or after some bytes."""
    asked = []
    piece = served.session.piece

    def ask(call, upload, flags, *rest):
        if at is not None and len(asked) < times and len(upload.data) >= at:
            served.session.uploads.pop(call, None)
            end(call)
        else:
            piece(call, upload, flags, *rest)

    def end(call):
        asked.append(call)
        meta = {"error": {"Code": "SlowDown", "Message": "no"}, "again_after_ms": 1}
        served.session.complete(call, 1, 16, meta, None, 0, 0)

    perform = served.session.perform

    def again(call, upload):
        numbers.append(upload.meta.get("again"))
        if at is None and len(asked) < times:
            end(call)
        else:
            perform(call, upload)

    numbers = []
    monkeypatch.setattr(served.session, "piece", ask)
    monkeypatch.setattr(served.session, "perform", again)
    return asked, numbers


@pytest.mark.parametrize("at", [None, 0, 1 << 20, 5 << 20])
def test_a_body_that_the_host_has_not_kept_is_sent_again(served, link, store, monkeypatch, at):
    asked, numbers = once_more(served, link, monkeypatch, 2, at)
    data = random.Random(1).randbytes(9 << 20)
    put("k", data)
    assert store.objects["k"] == data
    # The host hears which call this one repeats.
    assert len(asked) == 2 and numbers[-1] == asked[-1]
    assert idle(served, link)


def test_a_file_is_read_again_and_says_so(served, link, store, monkeypatch, tmp_path):
    once_more(served, link, monkeypatch, 1, 3 << 20)
    data = random.Random(1).randbytes(9 << 20)
    (tmp_path / "f").write_bytes(b"before" + data)
    seen = []
    with open(tmp_path / "f", "rb") as file:
        file.seek(6)
        body = source.File(file, len(data), seen.append)
        calls.perform("s3", "PutObject", {"Key": "k"}, body)
    assert store.objects["k"] == data
    assert sum(seen) == len(data) and min(seen) < 0
    assert idle(served, link)


class Once:
    """What cannot go back."""

    def __init__(self, data):
        self.data = data

    def read(self, size):
        piece, self.data = self.data[:size], self.data[size:]
        return piece


def test_what_cannot_be_read_again_raises_botocores_exception(served, link, store, monkeypatch):
    from unlade_guest.errors import UnseekableStreamError

    data = random.Random(1).randbytes(9 << 20)
    body = source.of(Once(data), len(data))
    calls.perform("s3", "PutObject", {"Key": "k"}, body)
    assert store.objects["k"] == data
    once_more(served, link, monkeypatch, 1, 3 << 20)
    with pytest.raises(UnseekableStreamError, match="Need to rewind the stream .*Once"):
        calls.perform("s3", "PutObject", {"Key": "k"}, source.of(Once(data), len(data)))
    assert idle(served, link)
    short = source.of(Once(data), len(data) + 1)
    with pytest.raises(EOFError):
        calls.perform("s3", "PutObject", {"Key": "k"}, short)
