"""Instances with the real boto3: the baselines that the stub is compared with."""

import json
import socket
import subprocess
import sys
import threading

import pytest

from instances import Served, environment
from test_instance import invoke

APP = """
def where(event, context):
    import boto3
    return {"file": boto3.__file__, "loaded": "unlade_guest.session" in __import__("sys").modules}

def read(event, context):
    import boto3
    s3 = boto3.client("s3", region_name="us-east-1")
    return s3.get_object(Bucket="box", Key=event["key"])["Body"].read().decode()
"""
OBJECT = b"carried"


class Relay:
    """What the host has in its place: a stream socket, and behind it a store."""

    def __init__(self, path):
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen(8)
        self.asked = []
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        while True:
            try:
                end, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(end,), daemon=True).start()

    def _answer(self, end):
        head = b""
        with end:
            while True:
                data = end.recv(65536)
                if not data:
                    return
                head += data
                if head.endswith(b"\r\n\r\n"):
                    self.asked.append(head.decode())
                    head = b""
                    length = b"content-length: %d\r\n\r\n" % len(OBJECT)
                    end.sendall(b"HTTP/1.1 200 OK\r\n" + length + OBJECT)

    def close(self):
        self.listener.close()


def instance_of(store, folder, sdk, by_zygote, **more):
    """An instance; a function that ends it."""
    (folder / "app.py").write_text(APP)
    served = Served(store)
    about = dict(
        LAMBDA_TASK_ROOT=str(folder),
        AWS_ACCESS_KEY_ID="a",
        AWS_SECRET_ACCESS_KEY="s",
        **more,
    )
    if not by_zygote:
        descriptor = served.guest_end.fileno()
        process = subprocess.Popen(
            [sys.executable, "-m", "unlade_guest.runtime", "--sdk", sdk],
            pass_fds=[descriptor],
            cwd=folder,
            env=environment(UNLADE_CHANNEL_FD=str(descriptor), **about),
            stdout=subprocess.DEVNULL,
        )
        closes = [served]
    else:
        own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        own.settimeout(30)
        command = [sys.executable, "-m", "unlade_guest.zygote", "--control", str(other.fileno())]
        process = subprocess.Popen(
            command + ["--sdk", sdk, "--handler", "app.where"],
            pass_fds=[other.fileno()],
            cwd=folder,
            env=environment(LAMBDA_TASK_ROOT=str(folder)),
            stdout=subprocess.DEVNULL,
        )
        other.close()
        assert json.loads(own.recv(4096)) == {"ready": True}
        request = json.dumps({"fork": "i", "environment": about}).encode()
        socket.send_fds(own, [request], [served.guest_end.fileno()])
        assert json.loads(own.recv(4096))["forked"] == "i"
        closes = [served, own]
    served.guest_end.close()
    assert served.session.greeted.wait(30)

    def end():
        for each in closes:
            each.close()
        process.wait(30)

    return served.session, end


@pytest.mark.parametrize("by_zygote", [False, True])
@pytest.mark.parametrize("sdk", ["stock", "tcp", "stub"])
def test_an_instance_answers_with_every_sdk(store, tmp_path, sdk, by_zygote):
    session, end = instance_of(store, tmp_path, sdk, by_zygote)
    try:
        head, result = invoke(session, "app.where", {})
        assert head["status"] == "done", result
        assert ("synthetic" in result["file"]) == (sdk == "stub")
        assert result["loaded"] == (sdk == "stub")
    finally:
        end()


@pytest.mark.parametrize("by_zygote", [False, True])
def test_connections_of_the_real_boto3_go_over_the_relay(store, tmp_path, by_zygote):
    relay = Relay(tmp_path / "relay")
    # There is no such host: a name that is looked up would be an error.
    session, end = instance_of(
        store,
        tmp_path,
        "tcp",
        by_zygote,
        UNLADE_RELAY_PATH=str(tmp_path / "relay"),
        AWS_ENDPOINT_URL="http://store.invalid:9000",
    )
    try:
        head, result = invoke(session, "app.read", {"key": "k"})
        assert (head["status"], result) == ("done", OBJECT.decode())
        (asked,) = relay.asked
        assert asked.startswith("GET /box/k HTTP/1.1\r\n") and "AWS4-HMAC-SHA256" in asked
        assert store.calls == []
    finally:
        end()
        relay.close()


def test_other_names_are_refused():
    for module in ("runtime", "zygote"):
        command = [sys.executable, "-m", "unlade_guest." + module, "--sdk", "nonsense"]
        if module == "zygote":
            command += ["--control", "0"]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True)
        assert done.returncode == 1 and "stub, stock or tcp" in done.stderr
