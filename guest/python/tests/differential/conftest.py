"""Stores, and processes that use them: with stock boto3, with the stub over a host."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

import hosts  # noqa: E402
from faulty import Faulty  # noqa: E402
from hosts import KEY, START_SECONDS_MAX, environment, stop  # noqa: E402


def free_port():
    """A port that the kernel chose."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


class Store:
    """What a store is for the comparison, unless it says otherwise."""

    @staticmethod
    def lacks(_):
        """Whether a case broke since the store has no such operation."""
        return False


class Moto(Store):
    """moto, as a server of its own."""

    def __init__(self):
        port = free_port()
        self.endpoint = "http://127.0.0.1:%d" % port
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment()
        )
        for _ in range(START_SECONDS_MAX * 10):
            try:
                self.reset()
                return
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.1)
        stop(self.process)
        raise RuntimeError("moto does not start")

    def reset(self):
        """Forgets everything."""
        url = self.endpoint + "/moto-api/reset"
        urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=20).close()

    def close(self):
        """Ends it."""
        stop(self.process)


class BuiltIn(Store):
    """`unlade fn store`: a directory a bucket."""

    OTHERWISE = {
        "surface/credentials_in_code": "the store knows one pair of keys; the stub's are the host's"
    }

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="unlade-store-")
        self.root = os.path.join(self.folder, "objects")
        secret = os.path.join(self.folder, "secret")
        with open(secret, "w") as file:
            file.write(KEY)
        command = [hosts.binary(), "fn", "store", "--dir", self.root, "--listen", "127.0.0.1:0"]
        self.process = subprocess.Popen(
            command + ["--access-key", KEY, "--secret-key-file", secret],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.endpoint = self.process.stdout.readline().strip()
        assert self.endpoint, "unlade fn store does not start"

    @staticmethod
    def lacks(trace):
        """Whether a case broke since the store has no such operation."""
        return "(NotImplemented)" in trace

    def reset(self):
        """Forgets everything."""
        for name in os.listdir(self.root):
            path = os.path.join(self.root, name)
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            else:
                os.unlink(path)

    def close(self):
        """Ends it."""
        stop(self.process)
        shutil.rmtree(self.folder)


class Runner:
    """A process that runs cases: with stock boto3, or with the stub over a host."""

    def __init__(self, endpoint, host=None, keeps_files=False):
        self.endpoint = endpoint
        self.keeps_files = keeps_files
        self.host = host
        self.start()

    def start(self):
        """Starts the process."""
        mode = "stock" if self.host is None else "stub"
        env = environment(self.endpoint)
        if self.keeps_files:
            env["DIFFERENTIAL_FILES"] = "1"
        keep = ()
        if self.host is not None:
            for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
                del env[name]
            own = self.host.channel()
            env["UNLADE_CHANNEL_FD"] = str(own.fileno())
            keep = (own.fileno(),)
        self.process = subprocess.Popen(
            [sys.executable, os.path.join(HERE, "worker.py"), mode],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=env,
            pass_fds=keep,
            text=True,
        )
        if self.host is not None:
            own.close()
        assert self.process.stdout.readline().strip() == "ready"

    def run(self, name):
        """What a case saw. A process that ended is started again for the next one."""
        if self.process.poll() is not None:
            self.process.stdin.close()
            self.start()
        self.process.stdin.write(json.dumps(name) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            return {"seen": [], "broken": "the worker ended in %s" % name}
        return json.loads(line)

    def close(self):
        """Ends the process and its host."""
        self.process.stdin.close()
        stop(self.process)
        if self.host is not None:
            self.host.close()


class Bench:
    """A store, and what is run against it. Stock boto3 sees each case once."""

    def __init__(self, store, makers):
        self.store = store
        self.makers = makers
        self.runners = {}
        self.stock = {}

    def runner(self, name):
        """A runner, started when it is first needed."""
        if name not in self.runners:
            make = self.makers.get(name)
            host = make(self.store.endpoint) if make else None
            keeps_files = isinstance(self.store, BuiltIn)
            self.runners[name] = Runner(self.store.endpoint, host, keeps_files)
        return self.runners[name]

    def see(self, who, case):
        """What a runner sees of a case, in an empty store."""
        if who == "stock" and case in self.stock:
            return self.stock[case]
        runner = self.runner(who)
        self.store.reset()
        seen = runner.run(case)
        if runner.host is not None and getattr(runner.host, "writes", None):
            # What is pending belongs to this case, and not to the next one's empty store.
            runner.host.settle()
        if who == "stock":
            self.stock[case] = seen
        return seen

    def close(self):
        """Ends all."""
        for runner in self.runners.values():
            runner.close()
        self.store.close()


def need_binary():
    """Skips where there is no worker."""
    if hosts.binary() is None:
        pytest.skip("unlade is not built: cargo build -p cli, or UNLADE_BIN")


@pytest.fixture(scope="session")
def moto():
    """moto, with either host."""
    makers = {"reference": hosts.Reference, "worker": hosts.Worker, "pending": pending}
    found = Bench(Moto(), makers)
    yield found
    found.close()


@pytest.fixture(scope="session")
def built_in():
    """The built-in store, with the worker."""
    need_binary()
    found = Bench(BuiltIn(), {"worker": hosts.Worker, "pending": pending})
    yield found
    found.close()


@pytest.fixture(scope="session")
def faulty():
    """A store that fails as its keys say."""
    found = Bench(Faulty(), {"reference": hosts.Reference, "worker": hosts.Worker})
    yield found
    found.close()


def pending(endpoint):
    """A worker that acknowledges writes before they are durable."""
    return hosts.Worker(endpoint, writes="durable-reply")
