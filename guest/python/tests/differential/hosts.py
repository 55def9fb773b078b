"""Hosts that carry the stub's calls: the reference in `tests/host.py`, and the worker of the host."""

import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TESTS = os.path.dirname(HERE)
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(TESTS)))
START_SECONDS_MAX = 60
PORTS_MAX = 4
KEY = "testing"
EVERYTHING = {"statements": [{"effect": "allow", "actions": ["*"], "resources": ["*"]}]}


def binary():
    """The path of `unlade`, or None where none was built."""
    named = os.environ.get("UNLADE_BIN")
    if named:
        return named
    for kind in ("release", "debug"):
        path = os.path.join(ROOT, "target", kind, "unlade")
        if os.path.isfile(path):
            return path
    return None


def environment(endpoint=None):
    """What all processes have around them."""
    out = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AWS_", "UNLADE_"))
    }
    out.update(
        AWS_ACCESS_KEY_ID=KEY,
        AWS_SECRET_ACCESS_KEY=KEY,
        AWS_EC2_METADATA_DISABLED="true",
        AWS_RETRY_MODE="standard",
        AWS_CONFIG_FILE="/nonexistent",
        AWS_SHARED_CREDENTIALS_FILE="/nonexistent",
        PYTHONDONTWRITEBYTECODE="1",
        PYTHONHASHSEED="0",  # sets have one order, also those of moto
        PYTHONWARNINGS="ignore::DeprecationWarning",
        TZ="UTC",
    )
    if endpoint:
        out["AWS_ENDPOINT_URL"] = out["UNLADE_STORE_ENDPOINT"] = endpoint
    return out


def started(spawn, answers, port=None):
    """A server's process, once it answers. `spawn` starts it at a port, which others may have
    taken meanwhile: then it ends by itself, and is started at another one, or again at `port`."""
    for _ in range(PORTS_MAX):
        process = spawn(port or free_port())
        for _ in range(START_SECONDS_MAX * 10):
            if process.poll() is not None:
                break
            if answers() and process.poll() is None:
                return process
            time.sleep(0.1)
        stop(process)
    raise RuntimeError("%s does not start" % process.args[:3])


def free_port():
    """A port that the kernel chose."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def stop(process):
    """Ends a process, and waits for it."""
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Reference:
    """The host in Python: one process a channel."""

    def __init__(self, endpoint):
        self.endpoint = endpoint
        self.process = None

    def channel(self):
        """The guest's end of a fresh channel; the one before has ended."""
        self.close()
        own, other = socket.socketpair()
        command = [sys.executable, os.path.join(TESTS, "host.py"), "--fd", str(other.fileno())]
        self.process = subprocess.Popen(
            command + ["--endpoint", self.endpoint],
            pass_fds=[other.fileno()],
            env=environment(),
        )
        other.close()
        return own

    def close(self):
        """Ends it."""
        if self.process is not None:
            stop(self.process)
            self.process = None


class Control:
    """A gateway's end of a worker's control socket (`functions/protocol/src/control.rs`)."""

    def __init__(self, path):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(path)
        self.sock.settimeout(START_SECONDS_MAX)
        self.input = b""

    def say(self, kind, payload=b"", beside=(), **members):
        """One message, with descriptors beside it."""
        head = json.dumps(dict(members, kind=kind)).encode()
        message = struct.pack("<I", len(head) + 1 + len(payload)) + head + b"\0" + payload
        socket.send_fds(self.sock, [message], list(beside))

    def hear(self, *kinds):
        """The next message of one of these kinds; others are dropped."""
        while True:
            while len(self.input) >= 4:
                (length,) = struct.unpack_from("<I", self.input)
                if len(self.input) < 4 + length:
                    break
                head = self.input[4 : 4 + length].partition(b"\0")[0]
                self.input = self.input[4 + length :]
                said = json.loads(head)
                if said["kind"] == "refused":
                    raise RuntimeError("the worker refuses: %s" % said["reason"])
                if said["kind"] in kinds:
                    return said
            data = self.sock.recv(65536)
            if not data:
                raise RuntimeError("the worker has gone")
            self.input += data


class Worker:
    """`unlade fn worker`. With `writes`, calls belong to an invocation whose writes are
    acknowledged in that way."""

    def __init__(self, endpoint, writes=None, more="", secret=KEY, ca=None, policy=EVERYTHING):
        self.folder = tempfile.mkdtemp(prefix="unlade-worker-")
        self.writes = writes
        self.instance = 0
        self.invoking = None
        path = os.path.join(self.folder, "control")
        config = os.path.join(self.folder, "worker.toml")
        with open(config, "w") as file:
            file.write(
                'control = "%s"\n[store]\nendpoint = "%s"\n'
                'credentials = { from = "keys", access_key_id = "%s", secret_access_key = "%s" }\n'
                '%s[log]\nlevel = "warn"\n%s'
                % (path, endpoint, KEY, secret, 'ca = "%s"\n' % ca if ca else "", more)
            )
        self.process = subprocess.Popen([binary(), "fn", "worker", "--config", config])
        try:
            self.control = self._connect(path)
            self.control.say("role", role=1, policy=policy)
        except BaseException:
            self.close()
            raise

    def _connect(self, path):
        for _ in range(START_SECONDS_MAX * 50):
            if self.process.poll() is not None:
                break
            try:
                return Control(path)
            except OSError:
                time.sleep(0.02)
        raise RuntimeError("unlade fn worker does not start")

    def channel(self):
        """The guest's end of a fresh channel; the one before has ended."""
        self._join()
        self.instance += 1
        own, other = socket.socketpair()
        with other:
            self.control.say(
                "attach",
                beside=[other.fileno()],
                instance=self.instance,
                role=1,
                function="differential",
            )
        if self.writes:
            self.invoking = threading.Thread(target=self._invoke, args=(self.instance,))
            self.invoking.start()
        return own

    def _join(self):
        """Only one at a time reads what the worker says."""
        if self.invoking is not None:
            self.invoking.join()
            self.invoking = None

    def _invoke(self, instance):
        said = {}
        while said.get("instance") != instance:
            said = self.control.hear("ready", "gone")
        if said["kind"] == "gone":
            return  # it has ended without a call
        self.control.say(
            "invoke",
            instance=instance,
            invocation="i-%d" % instance,
            handler="app.handler",
            function="differential",
            deadline_ms=0,
            memory_mib=128,
            writes=self.writes,
        )

    def settle(self):
        """Waits until what was written is durable; what is not. The invocation has no reply, so
        that the worker says it only when it is asked."""
        self._join()
        self.control.say("settle", invocation="i-%d" % self.instance)
        return self.control.hear("settled")["failed"]

    def close(self):
        """Ends it."""
        stop(self.process)
        shutil.rmtree(self.folder, ignore_errors=True)
