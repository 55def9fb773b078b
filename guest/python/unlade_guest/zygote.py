"""Forks instances of a function that was imported once.

    python -m unlade_guest.zygote --control FD [--sdk stub|stock|tcp] [--handler app.handler]
        [--import MODULE]... [--scratch DIRECTORY]... [--unpreloaded REASON]

The control socket is an AF_UNIX one of sequential packets. A request is JSON: `{"fork": "name",
"environment": {...}}`, with the instance's channel beside it (SCM_RIGHTS), and after it, where they
are given, its standard output and standard error. Answers: `{"ready": true}` once at the start,
`{"forked": "name", "pid": N}`, `{"exited": N, "status": N}`, `{"error": "...", "fork": "name"}`.
Where instances cannot share what a module makes when it is imported (`preload.py`), the zygote
starts itself again without it, and says `{"ready": true, "unpreloaded": "REASON", "modules": B}`:
instances import it themselves. B is true where that goes for the modules of `--import`, too.
`--scratch` names directories of which each instance has one of its own.
A child says HELLO on its channel, and waits for WELCOME: so it can be put where it belongs (cgroup,
limits) before it runs. A request may name a `root` for it, a `user` and the most `processes` of that
user, and the last `groups` of its descriptors are files of control groups: it goes there before it
says HELLO.
"""

import os
import sys

from . import current, preload, runtime, sdk
from .channel import ChannelLost
from .frames import receive_descriptors
from .text import dumps, loads

SIGCHLD = 17
# Passes over what imported modules have started: each kills all that it finds.
KILLS_MAX = 20


def warm(handler, modules, which, refuse, forks=True, scratch=()):
    """Imports what every instance would import, with the SDK that was installed.

    `refuse(reason, modules)` is called where instances cannot share the result, with those of the
    modules that they can (`preload.py`). It never returns.
    """
    for name in sdk.shared(which):
        __import__(name)

    def watch(kept):
        def give_up(why):
            refuse(preload.printable(why), kept)

        return preload.Watch(give_up, forks, which != sdk.STUB, scratch)

    if modules:
        with watch(()):
            for name in modules:
                __import__(name)
    if handler:
        with watch(modules):
            runtime.preload(handler)
    import gc

    gc.collect()
    gc.freeze()


class Beginning:
    """The start arguments of this process, with which it can restart without its imports."""

    def __init__(self, control, which, modules, scratch):
        import _signal

        self._control = control
        self._words = ["--control", str(control), "--sdk", which]
        for directory in scratch:
            self._words += ["--scratch", directory]
        self._modules = modules
        self._scratch = scratch
        self._files = set(preload.paths(scratch))
        self._environment = dict(os.environ)
        self._directory = os.getcwd()
        self._umask = os.umask(0o022)
        os.umask(self._umask)
        self._signals = {number: _signal.getsignal(number) for number in range(1, _signal.NSIG)}
        self._mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, ())

    def again(self, reason, modules):
        """Starts this process again, to import only these modules ahead; never returns."""
        import _signal

        _end_children()
        preload.remove(set(preload.paths(self._scratch)) - self._files)
        os.chdir(self._directory)
        os.umask(self._umask)
        # Those that have a function have none behind the exec; those that are ignored stay so.
        for number, handler in self._signals.items():
            if _signal.getsignal(number) == _signal.SIG_IGN != handler:
                _signal.signal(number, _signal.SIG_DFL)
        _signal.pthread_sigmask(_signal.SIG_SETMASK, self._mask)
        sys.stdout.flush()
        sys.stderr.flush()
        os.closerange(3, self._control)
        os.closerange(self._control + 1, _descriptors_end())
        flags = ["-s"] if sys.flags.no_user_site else []
        words = [sys.executable, *flags, "-m", "unlade_guest.zygote", *self._words]
        for module in modules:
            words += ["--import", module]
        if self._modules and not modules:
            words += ["--without", "modules"]
        words += ["--unpreloaded", reason]
        os.execve(sys.executable, words, self._environment)


def _descriptors_end():
    return max((int(name) for name in os.listdir("/proc/self/fd")), default=0) + 1


def _end_children():
    """Kills and waits for all children; as the first process of a namespace it has orphans, too."""
    for _ in range(KILLS_MAX):
        try:
            tasks = os.listdir("/proc/self/task")
            found = [open("/proc/self/task/%s/children" % task).read() for task in tasks]
        except OSError:
            return
        children = [int(pid) for text in found for pid in text.split()]
        if not children:
            return
        for pid in children:
            try:
                os.kill(pid, 9)
                os.waitpid(pid, 0)
            except OSError:
                pass  # somebody else has waited for it


class Zygote:
    """The process that forks."""

    def __init__(self, control, unpreloaded=None, without_modules=False):
        self._control = control
        self._ready = {"ready": True}
        if unpreloaded is not None:
            self._ready.update(unpreloaded=unpreloaded, modules=without_modules)
        self._children = set()

    def say(self, **members):
        """One packet."""
        os.write(self._control, dumps(members).encode())

    def run(self):
        """Serves the control socket until its other end is closed."""
        import _signal
        import resource  # noqa: F401, its children use it
        import select

        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        _signal.signal(SIGCHLD, lambda *_: None)
        _signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(reader, select.POLLIN)
        # Instances must not print again what an import has printed.
        sys.stdout.flush()
        sys.stderr.flush()
        self.say(**self._ready)
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
    """Goes where a child belongs: its control groups, root, limit of processes and user; the other
    descriptors.

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
    if "processes" in said:
        # The zygote's limit has room for children that are not yet their own user.
        import resource

        most = said["processes"]
        inherited = resource.getrlimit(resource.RLIMIT_NPROC)[1]
        if inherited != resource.RLIM_INFINITY:
            most = min(most, inherited)
        resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
    if "user" in said:
        user = said["user"]
        os.setgroups(())
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    return rest


USAGE = (
    "usage: zygote --control FD [--sdk S] [--handler H] [--import MODULE]... "
    "[--scratch DIRECTORY]... [--unpreloaded REASON [--without modules]]"
)
ONCE = ("--control", "--sdk", "--handler", "--unpreloaded", "--without")
MANY = ("--import", "--scratch")


def read(arguments):
    """Arguments by their names."""
    given = dict.fromkeys(ONCE)
    given.update({name: [] for name in MANY})
    words = iter(arguments)
    for word in words:
        value = next(words, None)
        if word not in given or not value:
            sys.exit(USAGE)
        if word in MANY:
            given[word].append(value)
        else:
            given[word] = value
    if given["--control"] is None:
        sys.exit("zygote: --control FD is missing")
    return given


def main(arguments):
    """Reads the arguments, warms up, serves."""
    given = read(arguments)
    control, which = int(given["--control"]), given["--sdk"] or sdk.STUB
    modules, scratch = given["--import"], given["--scratch"]
    try:
        sdk.install(which)
    except ValueError as error:
        sys.exit("zygote: %s" % error)
    beginning = Beginning(control, which, modules, scratch)
    warm(given["--handler"], modules, which, beginning.again, scratch=scratch)
    Zygote(control, given["--unpreloaded"], given["--without"] is not None).run()


if __name__ == "__main__":
    main(sys.argv[1:])
