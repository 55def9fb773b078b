"""The loop of an instance: INVOKE, handler, REPLY.

python -m unlade_guest.runtime [--sdk stub|stock|tcp]      with UNLADE_CHANNEL_FD
"""

import os
import sys

from . import context as contexts
from . import current, sdk, stdout_capture
from .channel import ChannelLost
from .frames import FRAME_BYTES_MAX
from .handler import Failure, failure_of, find
from .text import dumps, loads

RESULT_BYTES_MAX = 6 * 1024 * 1024
INLINE_BYTES_MAX = FRAME_BYTES_MAX - 32 * 1024  # a log's tail may have six bytes for each


class Runtime:
    """One instance."""

    def __init__(self, link):
        self._link = link
        self._handlers = {}
        self._tail = stdout_capture.install()
        self._lent = None

    def run(self):
        """Answers invocations until the channel ends."""
        while True:
            try:
                content = self._link.next_invocation()
                self._answer(*self._event(content))
            except ChannelLost as error:
                print("unlade: %s" % error, file=sys.__stderr__)
                if not self._restored():
                    return

    def _restored(self):
        """A machine that was restored from a snapshot has another channel: it greets anew."""
        self._link.close()
        try:
            link = current.reconnect()
        except ChannelLost as error:
            print("unlade: %s" % error, file=sys.__stderr__)
            return False
        if link is None:
            return False
        self._link, self._lent = link, None
        reseed()
        return True

    def _event(self, content):
        text, _, event = content.partition(b"\0")
        head = loads(text.decode())
        if self._lent is not None:
            self._link.give_slots(self._lent)
            self._lent = None
        if "event_slot" in head:
            event = bytes(self._link.region.host_view(head["event_slot"], head["event_bytes"]))
        return head, event

    def _answer(self, head, event):
        try:
            status, result = "done", self._invoke(head, event)
            if len(result) > RESULT_BYTES_MAX:
                raise Failure(
                    "Function.ResponseSizeTooLarge",
                    "Response payload size exceeded maximum allowed payload size (%d bytes)."
                    % RESULT_BYTES_MAX,
                )
        except Failure as failure:
            status, result = "error", self._failed(head, failure)
        reply = {
            "id": head["id"],
            "status": status,
            "log_tail": self._tail.take(),
            "result_bytes": len(result),
        }
        if len(result) > INLINE_BYTES_MAX:
            result = self._lend(reply, result)
        sys.stdout.flush()
        sys.stderr.flush()
        self._link.reply(dumps(reply).encode() + b"\0" + result)

    def _failed(self, head, failure):
        print("[ERROR] %s: %s" % (failure.kind, failure.message))
        if failure.trace:
            print("Traceback (most recent call last):\n" + "".join(failure.trace))
        return dumps(failure.answer(head["id"])).encode()

    def _lend(self, reply, result):
        """Puts a large result into slots, which are the guest's again at the next INVOKE."""
        region = self._link.region
        count = -(-len(result) // region.slot_bytes)
        extents = self._link.take_slots(count)
        if extents[1] < count:
            self._link.give_slots(extents)
            failure = Failure(
                "Function.ResponseSizeTooLarge",
                "the result has %d bytes: more than the region has room for" % len(result),
            )
            result = dumps(failure.answer(reply["id"])).encode()
            reply.update(status="error", result_bytes=len(result))
            return result
        self._lent = extents
        region.guest_view(extents[0], len(result))[:] = result
        reply["result_slot"] = extents[0]
        return b""

    def _invoke(self, head, event):
        contexts.environment(head)
        name = head["handler"]
        handler = self._handlers.get(name)
        if handler is None:
            handler = self._handlers[name] = find(name)
        context = contexts.Context(head)
        stdout_capture.logging(context)
        os.environ["_X_AMZN_TRACE_ID"] = head.get("trace", "")
        try:
            value = loads(event.decode()) if event else {}
        except ValueError as error:
            message = "Unable to unmarshal input: %s" % error
            raise Failure("Runtime.UnmarshalError", message) from error
        try:
            result = handler(value, context)
        except (Exception, SystemExit) as error:
            raise failure_of(error) from error
        try:
            return dumps(result).encode()
        except (TypeError, ValueError, RecursionError) as error:
            message = "Unable to marshal response: %s" % error
            raise Failure("Runtime.MarshalError", message) from error


def reseed():
    """Fresh randomness for generators that a snapshot or a fork would repeat."""
    found = sys.modules.get("random")
    if found is not None:
        found.seed()
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy.random" in sys.modules:
        numpy.random.seed()


def preload(name):
    """Imports a handler before anything is invoked; a failure is told by the first invocation."""
    try:
        find(name)
    except Failure as failure:
        for module in [name.rpartition(".")[0].replace("/", ".")]:
            sys.modules.pop(module, None)
        print("unlade: not preloaded: %s" % failure.message, file=sys.stderr)


def main(arguments):
    """Runs an instance on the channel of the environment."""
    if arguments[:1] == ["--sdk"] and len(arguments) == 2:
        name = arguments[1]
    elif not arguments:
        name = sdk.STUB
    else:
        sys.exit("usage: runtime [--sdk stub|stock|tcp]")
    try:
        sdk.install(name)
    except ValueError as error:
        sys.exit("unlade: %s" % error)
    try:
        link = current.channel()
    except ChannelLost as error:
        sys.exit("unlade: %s" % error)
    Runtime(link).run()


if __name__ == "__main__":
    main(sys.argv[1:])
