"""Forks instances of a function that was imported once.

    python -m unlade_guest.zygote --control FD [--sdk stub|stock|tcp] [--handler app.handler]
        [--import MODULE]...

The control socket is an AF_UNIX one of sequential packets. A request is JSON: `{"fork": "name",
"environment": {...}}`, with the instance's channel beside it (SCM_RIGHTS), and after it, where they
are given, its standard output and standard error. Answers: `{"ready": true}` once at the start,
`{"forked": "name", "pid": N}`, `{"exited": N, "status": N}`, `{"error": "...", "fork": "name"}`.
A child says HELLO on its channel, and waits for WELCOME: so it can be put where it belongs (cgroup,
limits) before it runs. A request may name a `root` for it and a `user`, and the last `groups` of its
descriptors are files of control groups: it goes there before it says HELLO.
"""

import os
import sys

from . import current, runtime, sdk
from .channel import ChannelLost
from .frames import receive_descriptors
from .text import dumps, loads

SIGCHLD = 17


def warm(handler, modules, which=sdk.STUB):
    """Imports what every instance would import, with the SDK that was installed."""
    for name in sdk.shared(which) + tuple(modules):
        __import__(name)
    if handler:
        runtime.preload(handler)
    import gc

    gc.collect()
    gc.freeze()


class Zygote:
    """The process that forks."""

    def __init__(self, control):
        self._control = control
        self._children = set()

    def say(self, **members):
        """One packet."""
        os.write(self._control, dumps(members).encode())

    def run(self):
        """Serves the control socket until its other end is closed."""
        import _signal
        import select

        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        _signal.signal(SIGCHLD, lambda *_: None)
        _signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(reader, select.POLLIN)
        self.say(ready=True)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == reader:
                    os.read(reader, 4096)
                    self._reap()
                elif not self._serve((reader, writer)):
                    return

    def _reap(self):
        # As the first process of a namespace it has the orphans of its children as well.
        while True:
            try:
                child, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not child:
                return
            if child in self._children:
                self._children.discard(child)
                self.say(
                    exited=child, status=os.WEXITSTATUS(status) if os.WIFEXITED(status) else -1
                )

    def _serve(self, own):
        try:
            data, descriptors = receive_descriptors(self._control)
        except ConnectionError:
            return False
        if not data:
            return False
        name = None
        try:
            said = loads(data.decode())
            name = said["fork"]
            if not descriptors:
                raise ValueError("no channel came beside the request")
            child = os.fork()
            if child == 0:
                self._child(said, descriptors, own)
            self._children.add(child)
            self.say(forked=name, pid=child)
        except (ValueError, KeyError, TypeError, OSError) as error:
            self.say(error=str(error), fork=name)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return True

    def _child(self, said, descriptors, own):
        """An instance; never returns."""
        import _signal

        status = 1
        try:
            _signal.set_wakeup_fd(-1)
            _signal.signal(SIGCHLD, _signal.SIG_DFL)
            for descriptor in (self._control,) + own:
                os.close(descriptor)
            descriptors = settle(said, descriptors)
            for target, descriptor in zip((1, 2), descriptors[1:]):
                os.dup2(descriptor, target)
                os.close(descriptor)
            os.environ.update(said.get("environment", {}))
            runtime.reseed()
            link = current.connect(descriptors[0])
            runtime.Runtime(link).run()
            status = 0
        except ChannelLost as error:
            print("unlade: %s" % error, file=sys.stderr)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)


def settle(said, descriptors):
    """Goes where a child belongs: its control groups, root and user; the other descriptors.

    The user comes last: it has no right to any of this.
    """
    count = said.get("groups", 0)
    rest, groups = descriptors[: len(descriptors) - count], descriptors[len(descriptors) - count :]
    for descriptor in groups:
        os.write(descriptor, b"0")
        os.close(descriptor)
    if "root" in said:
        directory = os.getcwd()
        os.chroot(said["root"])
        os.chdir(directory)
    if "user" in said:
        user = said["user"]
        os.setgroups(())
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    return rest


def main(arguments):
    """Reads the arguments, warms up, serves."""
    control, handler, modules, which = None, None, [], sdk.STUB
    words = iter(arguments)
    for word in words:
        value = next(words, None)
        if word == "--control" and value:
            control = int(value)
        elif word == "--handler" and value:
            handler = value
        elif word == "--import" and value:
            modules.append(value)
        elif word == "--sdk" and value:
            which = value
        else:
            sys.exit("usage: zygote --control FD [--sdk S] [--handler H] [--import MODULE]...")
    if control is None:
        sys.exit("zygote: --control FD is missing")
    try:
        sdk.install(which)
    except ValueError as error:
        sys.exit("zygote: %s" % error)
    warm(handler, modules, which)
    Zygote(control).run()


if __name__ == "__main__":
    main(sys.argv[1:])
