"""The first process of a virtual machine: becomes an instance each time its snapshot is restored.

    python -m unlade_guest.machine /function/start.json

It starts a process without privileges that imports the function, and says on the control port that
the machine may be saved; before that, as a line of JSON, where instances import the function
themselves (`preload.py`). What is read there next is said to a restored machine: the time, and
bytes that no other one has. Then the instance says HELLO on its channel.

The file: `{"control": PATH, "channel": PATH, "region": "phys:ADDRESS:BYTES", "user": N, "handler":
TEXT or null, "modules": [...], "path": [...], "environment": {...}, "sdk": "stub" or "stock"}`.
"""

import os
import sys

from .text import dumps, loads

LINE_BYTES_MAX = 4096
REASON_CHARACTERS_MAX = 500
SIGKILL = 9
ENTROPY_BYTES_MIN = 32
READY = b"ready\n"
# Of the function's process to the first one: it has imported everything.
IMPORTED = b"1"
RNDADDENTROPY = 0x40085203
RNDRESEEDCRNG = 0x5207


def read_line(descriptor):
    """Bytes up to a newline; what comes behind it is left alone by who writes."""
    found = b""
    while not found.endswith(b"\n"):
        data = os.read(descriptor, LINE_BYTES_MAX - len(found))
        if not data:
            raise EOFError("the host closed the control port")
        found += data
        if len(found) >= LINE_BYTES_MAX:
            raise ValueError("the host said too much")
    return found


def resume(said):
    """Replaces state that restored machines must not share: the time and the randomness."""
    import time
    from fcntl import ioctl
    from struct import pack

    time.clock_settime_ns(time.CLOCK_REALTIME, said["time_ns"])
    entropy = bytes.fromhex(said["entropy"])
    if len(entropy) < ENTROPY_BYTES_MIN:
        raise ValueError("the host gave too little entropy")
    random = os.open("/dev/urandom", os.O_WRONLY | os.O_CLOEXEC)
    try:
        ioctl(random, RNDADDENTROPY, pack("ii", len(entropy) * 8, len(entropy)) + entropy)
        ioctl(random, RNDRESEEDCRNG)
    finally:
        os.close(random)


def forget(spared_bytes=8 << 20):
    """Fills free memory with zeros, which the host does not keep.

    Linux gives a process nothing but zeros; what it was given stays zero when it is free again.
    """
    import mmap

    with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as file:
        file.write("3")
    with open("/proc/meminfo", encoding="ascii") as file:
        free = next(int(line.split()[1]) << 10 for line in file if line.startswith("MemFree:"))
    if free > spared_bytes:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
        mmap.mmap(-1, free - spared_bytes, flags=flags).close()


def instance(said, mapping, ready, resumed):
    """The process of the function: imports it, waits until the machine was restored, serves.

    Where instances cannot share the result it says why on `ready`, and ends: another one is started
    that imports less. Threads and files of a machine are saved with it, so they are no reason.
    """
    from . import current, region, runtime, sdk, zygote

    os.environ.clear()
    os.environ.update(said["environment"])
    os.environ["UNLADE_CHANNEL_PATH"] = said["channel"]
    os.environ["UNLADE_REGION"] = said["region"]
    sys.path[:] = said["path"]
    region.adopt(mapping)
    which = said.get("sdk", sdk.STUB)
    sdk.install(which)

    def refuse(reason, modules):
        told = {"unpreloaded": reason, "modules": bool(said["modules"]) and not modules}
        os.write(ready, dumps(told).encode()[:LINE_BYTES_MAX])
        os._exit(0)

    zygote.warm(said["handler"], said["modules"], which, refuse, forks=False)
    os.write(ready, IMPORTED)
    os.close(ready)
    if os.read(resumed, 1) != b"1":
        raise EOFError("the machine was not restored")
    os.close(resumed)
    runtime.reseed()
    runtime.Runtime(current.channel()).run()


def unprivileged(user, paths):
    """No rights but to these devices."""
    for path in paths:
        os.chown(path, user, user)
        os.chmod(path, 0o600)
    os.setsid()
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)


def start(said, mapping, control):
    """Forks the instance; its process, a pipe that says that it is ready, one that lets it go on."""
    ready, ready_end = os.pipe()
    resumed_end, resumed = os.pipe()
    process = os.fork()
    if process:
        os.close(ready_end)
        os.close(resumed_end)
        return process, ready, resumed
    status = 1
    try:
        for descriptor in (control, ready, resumed):
            os.close(descriptor)
        unprivileged(said["user"], [said["channel"]])
        instance(said, mapping, ready_end, resumed_end)
        status = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def started(said, mapping, control):
    """Starts the instance; again without the handler, and without all modules, where it says so.

    Its process, the end of a pipe that lets it go on, and whether it is ready for that. What it
    says is the function's word: it decides what is not imported ahead, and nothing else.
    """
    line = None
    while True:
        process, ready, resumed = start(said, mapping, control)
        told = os.read(ready, LINE_BYTES_MAX)
        os.close(ready)
        if not told or told == IMPORTED:
            break
        os.close(resumed)
        end_others()
        heard = loads(told.decode())
        every = bool(heard["modules"]) or said["handler"] is None
        line = {"unpreloaded": str(heard["unpreloaded"])[:REASON_CHARACTERS_MAX], "modules": every}
        said = dict(said, handler=None, modules=[] if every else said["modules"])
    if told and line:
        os.write(control, dumps(line).encode() + b"\n")
    return process, resumed, bool(told)


def end_others():
    """Ends everything but this process: what an import has started, too."""
    if os.getpid() == 1:
        try:
            os.kill(-1, SIGKILL)
        except ProcessLookupError:
            pass  # nothing else is running
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return


def main(path):
    """Runs one machine to the end of its instance."""
    from .region import map_device

    with open(path, encoding="utf-8") as file:
        said = loads(file.read())
    # The instance has the memory, and nothing with which it could reach other addresses.
    mapping = map_device(said["region"])
    control = os.open(said["control"], os.O_RDWR | os.O_CLOEXEC)
    process, resumed, is_ready = started(said, mapping, control)
    if is_ready:
        forget()
        os.write(control, READY)
        resume(loads(read_line(control).decode()))
        os.write(resumed, b"1")
    while True:
        # The first process has the orphans of all.
        found, status = os.wait()
        if found == process:
            print("unlade: the instance has ended: %d" % os.waitstatus_to_exitcode(status))
            return


if __name__ == "__main__":
    main(sys.argv[1])
