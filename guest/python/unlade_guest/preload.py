"""Imports a function's modules ahead of its instances, and notices what instances cannot share.

A zygote imports a handler once, without a channel to the host, and forks instances from the result.
That is right only for a module whose import gives the same result in every instance. This module
watches the import and gives up ("refuses") at the first sign of something else:

- a call of the host, or a connection: it cannot be answered here, and the function may swallow the
  error and go on with a default. It is refused at once, whatever the function would do next;
- what a fork does not copy or wrongly shares: threads, child processes, open descriptors, and files
  in directories that each instance has of its own;
- randomness: a value drawn here would be the same in every instance, and a generator that the
  function has seeded would be seeded again.

A refusal costs a slower cold start and nothing else: each instance imports the handler itself.
"""

import os
import sys

from . import current, random_draws

# A thread that has just ended is listed for a moment longer, and nothing tells its end.
SETTLE_STEPS_MAX = 25
SETTLE_STEP_S = 0.002
SCRATCH_FILES_MAX = 10_000
REASON_CHARACTERS_MAX = 500
# Devices that keep nothing, and which Python or libraries hold open.
STATELESS = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
# Threads that a library starts again in a fork's child, and does not end for the fork: jemalloc's.
RESTARTED = ("jemalloc_bg_thd",)
HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
STDLIB = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
CONNECTS = ("connect", "connect_ex", "sendto", "sendmsg")
RESOLVES = ("getaddrinfo", "gethostbyname", "gethostbyname_ex", "gethostbyaddr", "getnameinfo")


def is_stdlib(filename):
    """True if a code object's file is in the standard library, not in an installed package."""
    inside = filename.startswith(STDLIB) and "-packages" + os.sep not in filename
    return inside or filename.startswith("<frozen ")


def place():
    """`file:line` of the code that led here, without this package and the standard library."""
    frame = sys._getframe(1)
    while frame is not None:
        filename = frame.f_code.co_filename
        if not filename.startswith(HERE) and not is_stdlib(filename) and "botocore" not in filename:
            return "%s:%d" % (filename, frame.f_lineno)
        frame = frame.f_back
    return "a thread of the module"


class Watch:
    """Watches what is done within it. `refuse` is called with a reason, and never returns.

    `forks`: instances are forks of this process; else its memory, threads and files are saved as a
    whole. `network`: the function has a network of its own. `scratch`: directories of which each
    instance has one of its own.
    """

    def __init__(self, refuse, forks=True, network=False, scratch=()):
        self._refuse = refuse
        self._forks = forks
        self._network = network
        self._scratch = scratch
        self._active = False
        self._pid = os.getpid()
        self._reason = None
        self._has_forked = False
        self._draws = random_draws.Draws(is_stdlib)
        self._sockets = []

    def __enter__(self):
        import _signal

        self._active = True
        current.refuse_by(self._reached)
        self._draws.begin()
        # The way from a thread to the main one: only that can refuse (see `_reached`).
        self._handler = lambda *_: self._refuse(self._reason)
        self._handler_before = _signal.signal(_signal.SIGUSR2, self._handler)
        if self._network:
            self._watch_sockets()
        if self._forks:
            os.register_at_fork(after_in_parent=self._forked)
            self._threads = _threads()
            self._descriptors = set(_descriptors())
            self._files = dict(_files(self._scratch))

    def __exit__(self, kind, *_):
        import _signal

        reason = self._reason or self._left_behind()
        self._active = False
        current.refuse_by(None)
        if _signal.getsignal(_signal.SIGUSR2) is self._handler:
            _signal.signal(_signal.SIGUSR2, self._handler_before)
        for owner, name, before in self._sockets:
            if before is None:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        drawn = self._draws.end()
        if kind is None and (reason or drawn):
            self._refuse(reason or drawn)

    def _left_behind(self):
        if not self._forks:
            return None
        return (
            ("it has forked this process" if self._has_forked else None)
            or _children_left()
            or self._threads_left()
            or self._descriptors_left()
            or self._files_left()
        )

    def _forked(self):
        if self._active:
            self._has_forked = True

    def _reached(self, what="it calls the host"):
        """A call that nobody can answer here. Returns in a child and in a thread only."""
        if not self._active or os.getpid() != self._pid:
            return
        import _thread

        self._reason = self._reason or "%s while it is imported (%s)" % (what, place())
        # A new program that another thread starts would not end with its parent (prctl(2),
        # PR_SET_PDEATHSIG).
        if _thread.get_ident() == _main_thread():
            self._refuse(self._reason)
        import _signal

        os.kill(self._pid, _signal.SIGUSR2)

    def _watch_sockets(self):
        import socket

        for owner, names in ((socket.socket, CONNECTS), (socket, RESOLVES)):
            for name in names:
                before = vars(owner).get(name)
                setattr(owner, name, self._reaching(getattr(owner, name)))
                self._sockets.append((owner, name, before))

    def _reaching(self, do):
        def call(*args, **kwargs):
            self._reached("it uses the network")
            return do(*args, **kwargs)

        return call

    def _threads_left(self):
        """Threads end with a fork; libraries that know that end and restart their own."""
        if _settled(lambda: _threads()[1] <= self._threads[1] and _tasks() <= self._threads[0]):
            return None
        if _threads()[1] > self._threads[1]:
            return "threads that it started do not live in a fork (%s)" % _names_of_threads()
        active, self._active = self._active, False
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        self._active = active
        if _settled(lambda: _tasks() <= self._threads[0]):
            return None
        return "threads of a library that it uses do not live in a fork"

    def _descriptors_left(self):
        for descriptor, target in sorted(_descriptors()):
            if (descriptor, target) not in self._descriptors and target not in STATELESS:
                return "its instances would share what it opened (descriptor %d: %s)" % (
                    descriptor,
                    target,
                )
        return None

    def _files_left(self):
        for path, stamp in _files(self._scratch):
            if self._files.get(path) != stamp:
                return "its instances do not see a file that it wrote (%s)" % path
        return None


def printable(reason):
    """A reason as one line."""
    text = "".join(c if c.isprintable() else " " for c in reason)
    return text[:REASON_CHARACTERS_MAX]


def _main_thread():
    threading = sys.modules.get("threading")
    if threading is not None:
        return threading.main_thread().ident
    return _MAIN


def _threads():
    """All threads of this process, and those of Python's besides the main one."""
    import _thread

    return _tasks(), _thread._count()


def _tasks():
    """How many threads the kernel knows, without those that live on in a fork."""
    try:
        numbers = os.listdir("/proc/self/task")
    except OSError:
        return 1
    return sum(_name_of(number) not in RESTARTED for number in numbers)


def _name_of(task):
    try:
        with open("/proc/self/task/%s/comm" % task, encoding="utf-8", errors="replace") as file:
            return file.read().rstrip("\n")
    except OSError:
        return None  # it has ended


def _settled(is_so):
    from time import sleep

    for _ in range(SETTLE_STEPS_MAX):
        if is_so():
            return True
        sleep(SETTLE_STEP_S)
    return is_so()


def _names_of_threads():
    threading = sys.modules.get("threading")
    if threading is None:
        return "of _thread"
    main = threading.main_thread()
    return ", ".join(one.name for one in threading.enumerate() if one is not main) or "of _thread"


def _children_left():
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return "a process that it started is not an instance's child"


def _descriptors():
    """Open descriptors, and where they lead."""
    try:
        names = os.listdir("/proc/self/fd")
    except OSError:
        return
    for name in names:
        try:
            yield int(name), os.readlink("/proc/self/fd/" + name)
        except OSError:
            pass  # that of the listing itself


def _files(directories):
    """Files below directories, and what changes with them; so many at most."""
    waiting, count = list(directories), 0
    while waiting and count < SCRATCH_FILES_MAX:
        try:
            found = list(os.scandir(waiting.pop(0)))
        except OSError:
            continue
        for entry in found:
            count += 1
            try:
                said = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            yield entry.path, (said.st_mtime_ns, said.st_size, said.st_ino)
            if entry.is_dir(follow_symlinks=False):
                waiting.append(entry.path)


def paths(directories):
    """Files below directories."""
    return [path for path, _ in _files(directories)]


def remove(found):
    """Removes files and directories, what is in them first."""
    for path in sorted(found, reverse=True):
        try:
            os.unlink(path)
        except IsADirectoryError:
            try:
                os.rmdir(path)
            except OSError:
                pass  # something is in it that was there before
        except OSError:
            pass  # it has gone


def _ident():
    import _thread

    return _thread.get_ident()


# This module is imported by the main thread.
_MAIN = _ident()
