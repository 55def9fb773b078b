"""Bodies in both directions that break off, lie, or are let go at odd moments."""

import io

import pytest
from test_channel import get, idle, put
from test_transfers import SIZE, Changing

from unlade_guest import calls, source
from unlade_guest.body import RawBody, Stream
from unlade_guest.errors import IncompleteReadError, ResponseStreamingError


def asked_for():
    return calls.perform("s3", "GetObject", {"Key": "k"}, streaming=True)


class TestOfOnesThatBreak:
    @pytest.fixture
    def store(self):
        return Changing(100, False)

    def test_who_needs_room_does_not_hear_of_it(self, served, link):
        answer = asked_for()
        body = RawBody(answer.stream)
        assert body.read(10) == b"1" * 10
        assert Stream.spill_one(link), "its slots are free"
        assert idle(served, link)
        come = 10
        with pytest.raises(ResponseStreamingError):
            for view in body.windows():
                come += len(view)
        assert 10 < come < SIZE
        for _ in range(2):
            with pytest.raises(ResponseStreamingError):
                answer.stream.window()

    def test_a_counted_one_ends_too_early_for_its_reader(self, served, link):
        from unlade_guest.body import StreamingBody

        body = StreamingBody(RawBody(asked_for().stream, SIZE), SIZE)
        assert Stream.spill_one(link)
        assert 0 < len(body.read(SIZE)) < SIZE
        for _ in range(2):
            with pytest.raises(IncompleteReadError):
                body.read(SIZE)


def test_a_body_is_what_its_read_gives(served, link, store):
    class Loud(io.BytesIO):
        def read(self, size=-1):
            return super().read(size).upper()

    put("k", b"")
    for file in (Loud(b"abc" * 50_000), io.BytesIO(b"ABC" * 50_000)):
        calls.perform("s3", "PutObject", {"Key": "k"}, source.of(file))
        assert store.objects["k"] == b"ABC" * 50_000
    patched = io.BytesIO(b"x" * 9)
    patched.read = lambda size=-1: io.BytesIO.read(patched, size).upper()
    calls.perform("s3", "PutObject", {"Key": "k"}, source.of(patched))
    assert store.objects["k"] == b"X" * 9


def test_a_body_that_is_dropped_within_a_reply_is_released_later(served, link, monkeypatch):
    put("k", b"x" * 1_000_000)
    held = [asked_for(), asked_for()]
    send = link._frames.send

    def collecting(kind, content):
        held.clear()  # as a collection does wherever it likes
        send(kind, content)

    monkeypatch.setattr(link._frames, "send", collecting)
    link.reply(b'{"id": "i"}\0')
    assert served.session.replies.get(timeout=30)[0] == {"id": "i"}
    assert not held and len(link._releases) == 2
    assert idle(served, link)


@pytest.mark.parametrize("method", ["take_slots", "_reserve"])
@pytest.mark.parametrize("after", [0, 1, 2])
def test_an_exception_between_pieces_leaves_nothing(
    served, link, store, monkeypatch, method, after
):
    inner, times = getattr(link, method), []

    def interrupted(*arguments):
        times.append(1)
        if len(times) == after + 1:
            raise TimeoutError("enough")
        return inner(*arguments)

    monkeypatch.setattr(link, method, interrupted)
    with pytest.raises(TimeoutError):
        put("k", b"x" * (9 << 20))
    assert idle(served, link) and not served.session.uploads
    put("k", b"after")
    assert get("k") == b"after"


def test_parameters_that_are_too_long_leave_nothing(served, link, store):
    with pytest.raises(ValueError, match="too many"):
        calls.perform("s3", "PutObject", {"Key": "k" * 600_000}, source.Octets(b"x" * 9_000))
    assert idle(served, link)
    calls.perform("s3", "PutObject", {"Key": "k" * 300_000}, source.Octets(b"x" * 9_000))
    assert idle(served, link)


def test_an_answer_that_is_not_understood_leaves_nothing(served, link, monkeypatch):
    put("k", b"x" * 100_000)
    monkeypatch.setattr(calls, "decode", lambda text: int(text))
    with pytest.raises(ValueError):
        asked_for()
    assert idle(served, link)


@pytest.mark.parametrize(
    "metadata",
    [
        {"$instant": "never"},
        {"$instant": "2026-01-02T03:04:05Z"},
        {"$octets": "AAE="},
        {"$octets": "?"},
        {"$": ""},
        {"$$instant": "a"},
        {"$instant": "a", "b": "c"},
    ],
)
def test_entries_that_look_like_the_protocols_own_come_as_they_are(link, store, metadata):
    inner = store.get

    def described(key):
        outcome = inner(key)
        outcome.meta["result"]["Metadata"] = metadata
        return outcome

    store.get = described
    put("k", b"x")
    assert asked_for().said["result"]["Metadata"] == metadata


@pytest.mark.parametrize("value", ['"never"', "5", "null", "{}", "[]", '["a"]', '{"a":1,"b":2}'])
def test_what_is_no_instant_stays(value):
    import json

    from unlade_guest.text import decode

    for name in ("$instant", "$octets"):
        text = '{"a":{"%s":%s}}' % (name, value)
        if (name, value) != ("$octets", '"never"'):
            assert decode(text) == json.loads(text)


def test_an_exception_while_the_host_is_woken_leaves_nothing(served, link, store, monkeypatch):
    ring, rung = link._ring, []

    def interrupted():
        rung.append(1)
        if len(rung) == 1:
            raise TimeoutError("enough")
        ring()

    monkeypatch.setattr(link, "_ring", interrupted)
    with pytest.raises(TimeoutError):
        put("k", b"x" * (9 << 20))
    assert idle(served, link) and not served.session.uploads
    put("k", b"after")
    assert get("k") == b"after"
