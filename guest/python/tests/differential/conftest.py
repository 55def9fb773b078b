"""A server, and two workers that use it: one with stock boto3, one with the stub over a host."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
TESTS = os.path.dirname(HERE)
START_SECONDS_MAX = 60


def free_port():
    """A port that the kernel chose."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def environment(endpoint=None):
    """What both workers have around them."""
    out = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AWS_", "UNLADE_"))
    }
    out.update(
        AWS_ACCESS_KEY_ID="testing",
        AWS_SECRET_ACCESS_KEY="testing",
        AWS_EC2_METADATA_DISABLED="true",
        AWS_CONFIG_FILE="/nonexistent",
        AWS_SHARED_CREDENTIALS_FILE="/nonexistent",
        PYTHONDONTWRITEBYTECODE="1",
        PYTHONWARNINGS="ignore::DeprecationWarning",
        TZ="UTC",
    )
    if endpoint:
        out["AWS_ENDPOINT_URL"] = endpoint
    return out


def stop(process):
    """Ends a process, and waits for it."""
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Server:
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


class Worker:
    """A process that runs cases."""

    def __init__(self, mode, endpoint):
        self.mode = mode
        self.endpoint = endpoint
        self.start()

    def start(self):
        """Starts the process, and its host."""
        mode, endpoint = self.mode, self.endpoint
        env = environment(endpoint)
        self.host = None
        keep = ()
        if mode == "stub":
            for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
                del env[name]
            own, other = socket.socketpair()
            command = [sys.executable, os.path.join(TESTS, "host.py"), "--fd", str(other.fileno())]
            self.host = subprocess.Popen(
                command + ["--endpoint", endpoint],
                pass_fds=[other.fileno()],
                env=environment(),
            )
            other.close()
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
        if mode == "stub":
            own.close()
        assert self.process.stdout.readline().strip() == "ready"

    def run(self, name):
        """What a case saw. A worker that ended is started again for the next one."""
        if self.process.poll() is not None:
            self.close()
            self.start()
        self.process.stdin.write(json.dumps(name) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            return {"seen": [], "broken": "the worker ended in %s" % name}
        return json.loads(line)

    def close(self):
        """Ends both processes."""
        self.process.stdin.close()
        stop(self.process)
        if self.host is not None:
            stop(self.host)


@pytest.fixture(scope="session")
def server():
    """One server for all."""
    found = Server()
    yield found
    stop(found.process)


@pytest.fixture(scope="session")
def workers(server):
    """Both workers."""
    both = {}
    try:
        for mode in ("stock", "stub"):
            both[mode] = Worker(mode, server.endpoint)
        yield both
    finally:
        for worker in both.values():
            worker.close()
