"""Stores, and processes that use them: with stock boto3, with the stub over a host."""

import json
import os
import shutil
import subprocess
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

import hosts  # noqa: E402
import minio as program  # noqa: E402
from faulty import Faulty  # noqa: E402
from hosts import environment, stop  # noqa: E402
from stores import BuiltIn, Minio, Moto  # noqa: E402


class Runner:
    """A process that runs cases: with stock boto3, or with the stub over a host."""

    def __init__(self, store, host=None):
        self.store = store
        self.host = host
        self.start()

    def start(self):
        """Starts the process."""
        mode = "stock" if self.host is None else "stub"
        env = environment(self.store.endpoint)
        env["AWS_SECRET_ACCESS_KEY"] = self.store.secret
        if self.store.ca:
            env["AWS_CA_BUNDLE"] = self.store.ca
        if isinstance(self.store, (BuiltIn, Minio)):
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
            self.runners[name] = Runner(self.store, host)
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
        pytest.skip("unlade is not built: cargo build, or UNLADE_BIN")


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


def need_minio():
    """Skips where there is no MinIO."""
    need_binary()
    if program.find() is None:
        pytest.skip(program.HOW)


def with_minio(store):
    """A worker for MinIO, and a bench of it."""

    def worker(endpoint):
        return hosts.Worker(endpoint, secret=store.secret, ca=store.ca)

    return Bench(store, {"worker": worker})


@pytest.fixture(scope="session")
def minio():
    """MinIO, with the worker."""
    need_minio()
    found = with_minio(Minio())
    yield found
    found.close()


@pytest.fixture(scope="session")
def minio_tls():
    """MinIO over TLS, its certificate by an authority of its own."""
    need_minio()
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    found = with_minio(Minio(tls=True))
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
