"""The stores that cases run against, each a process of its own."""

import os
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

import hosts
import minio
from hosts import KEY, environment, started, stop


class Store:
    """What a store is for the comparison, unless it says otherwise."""

    OTHERWISE = {}  # cases that cannot be compared with it, and why
    secret = KEY
    ca = None

    @staticmethod
    def lacks(_):
        """Whether a case broke since the store has no such operation."""
        return False


class Moto(Store):
    """moto, as a server of its own."""

    def __init__(self):
        self.process = started(self._spawn, self._answers)

    def _spawn(self, port):
        self.endpoint = "http://127.0.0.1:%d" % port
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        return subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment()
        )

    def _answers(self):
        try:
            self.reset()
            return True
        except (urllib.error.URLError, ConnectionError):
            return False

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


class Minio(minio.Minio, Store):
    """MinIO."""

    OTHERWISE = {
        "surface/credentials_in_code": "the store knows one pair of keys; the stub's are the host's"
    }
    OTHERWISE_OVER_TLS = {
        "transfers/wrongly[3]": "botocore wraps what it sends over TLS, and loses a file's error"
    }
    secret = minio.SECRET

    @staticmethod
    def lacks(trace):
        """Whether a case broke since the store has no such operation, or not for this bucket."""
        return "botocore" in trace and "ClientError" in trace.splitlines()[-1]
