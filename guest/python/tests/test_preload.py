"""Modules that instances cannot share, imported ahead by a zygote and in each instance."""

import json
import os
import socket
import subprocess
import sys

import pytest

from instances import Served, environment
from test_instance import invoke


class Zygote:
    """A zygote, and instances that it forks."""

    def __init__(self, store, folder, app, *arguments, **variables):
        (folder / "app.py").write_text(app)
        self.scratch = folder / "scratch"
        self.scratch.mkdir()
        self.store = store
        self.control, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.settimeout(60)
        command = [sys.executable, "-m", "unlade_guest.zygote", "--control", str(other.fileno())]
        command += ["--handler", "app.handler", "--scratch", str(self.scratch), *arguments]
        more = dict(LAMBDA_TASK_ROOT=str(folder), SCRATCH=str(self.scratch), **variables)
        self.process = subprocess.Popen(
            command, pass_fds=[other.fileno()], cwd=folder, env=environment(**more)
        )
        other.close()
        self.ready = self.said()
        self.served = []

    def said(self):
        return json.loads(self.control.recv(65536))

    @property
    def reason(self):
        """Why instances import the handler themselves, or None."""
        return self.ready.get("unpreloaded")

    def instance(self):
        served = Served(self.store)
        self.served.append(served)
        request = json.dumps({"fork": "i%d" % len(self.served), "environment": {}}).encode()
        socket.send_fds(self.control, [request], [served.guest_end.fileno()])
        assert "forked" in self.said()
        served.guest_end.close()
        assert served.session.greeted.wait(60)
        return served.session

    def answer(self, event=None):
        """What an instance of its own answers."""
        head, result = invoke(self.instance(), "app.handler", event or {})
        assert head["status"] == "done", result
        return result

    def close(self):
        for served in self.served:
            served.close()
        for _ in self.served:
            assert "exited" in self.said()
        self.control.close()
        assert self.process.wait(60) == 0


@pytest.fixture
def zygote(store, tmp_path):
    made = []

    def make(app, *arguments, **variables):
        made.append(Zygote(store, tmp_path, app, *arguments, **variables))
        return made[-1]

    yield make
    for each in made:
        each.close()


SWALLOWED = """
import boto3, os
s3 = boto3.client("s3")
try:
    CONFIG = s3.get_object(Bucket="b", Key="config")["Body"].read().decode()
except Exception:
    CONFIG = "DEFAULT"

def handler(event, context):
    return {"mode": CONFIG}
"""


def test_a_configuration_read_at_import_is_not_silently_the_default(zygote, store):
    store.objects["config"] = b"production"
    forking = zygote(SWALLOWED)
    assert forking.answer() == {"mode": "production"}
    store.objects["config"] = b"changed"
    assert forking.answer() == {"mode": "changed"}, "each instance reads it itself"
    assert "calls the host" in forking.reason and "app.py:5" in forking.reason
    assert forking.ready["modules"] is False


def test_a_configuration_read_by_a_thread_at_import_is_not_silently_the_default(zygote, store):
    store.objects["config"] = b"production"
    # The thread tries for ever, and the module waits for it.
    app = """
import boto3, concurrent.futures, time
s3 = boto3.client("s3")

def read():
    for _ in range(100000):
        try:
            return s3.get_object(Bucket="b", Key="config")["Body"].read().decode()
        except Exception:
            time.sleep(0.1)
    return "DEFAULT"

with concurrent.futures.ThreadPoolExecutor() as pool:
    CONFIG = pool.submit(read).result()

def handler(event, context):
    return {"mode": CONFIG}
"""
    forking = zygote(app)
    assert forking.answer() == {"mode": "production"}
    assert "calls the host" in forking.reason


def test_a_preloaded_module_that_calls_the_host_is_not_preloaded(zygote, store, tmp_path):
    store.objects["config"] = b"production"
    (tmp_path / "settings.py").write_text(SWALLOWED)
    app = "from settings import CONFIG\ndef handler(event, context):\n    return CONFIG\n"
    forking = zygote(app, "--import", "settings", "--import", "json")
    assert forking.answer() == "production"
    assert "settings.py:5" in forking.reason and forking.ready["modules"] is True


def test_modules_that_can_be_shared_stay_preloaded(zygote, store, tmp_path):
    store.objects["config"] = b"production"
    (tmp_path / "heavy.py").write_text("import os\nPID = os.getpid()\n")
    app = SWALLOWED.replace("import boto3", "import heavy, boto3").replace(
        '{"mode": CONFIG}', "[CONFIG, heavy.PID]"
    )
    forking = zygote(app, "--import", "heavy")
    assert forking.answer() == ["production", forking.process.pid]
    assert forking.reason and forking.ready["modules"] is False


def test_what_an_abandoned_import_has_changed_is_undone(zygote, store):
    store.objects["config"] = b"production"
    app = """
import boto3, os, signal, subprocess
assert "LEFT" not in os.environ and os.getcwd() == os.environ["LAMBDA_TASK_ROOT"]
assert os.listdir(os.environ["SCRATCH"]) == [], "an instance of this test has the zygote's"
assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
MASK = os.umask(0o77)
assert MASK != 0o77
os.environ["LEFT"] = "1"
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
os.mkdir(os.environ["SCRATCH"] + "/d")
open(os.environ["SCRATCH"] + "/d/left", "w").close()
os.chdir("/")
process = subprocess.Popen(["sleep", "600"])
try:
    CONFIG = boto3.client("s3").get_object(Bucket="b", Key="config")["Body"].read().decode()
finally:
    process.kill(), process.wait()

def handler(event, context):
    return [CONFIG, len(open("/proc/%d/task/%d/children" % ((os.getppid(),) * 2)).read().split())]
"""
    assert zygote(app).answer() == ["production", 1], "the zygote has this child only"


def test_a_file_written_at_import_is_there(zygote):
    app = """
import os
PATH = os.environ["SCRATCH"] + "/d/words"
os.makedirs(os.path.dirname(PATH), exist_ok=True)
with open(PATH, "a") as file:
    file.write("written by %d\\n" % os.getpid())

def handler(event, context):
    return [open(PATH).read(), "written by %d\\n" % os.getpid()]
"""
    forking = zygote(app)
    # Here the directory is not an instance's own: so it shows who has written.
    found, expected = forking.answer()
    assert found == expected
    assert "does not see" in forking.reason or "do not see a file" in forking.reason


def test_an_executor_that_ran_at_import_does_not_hang(zygote):
    app = """
import concurrent.futures, os
pool = concurrent.futures.ThreadPoolExecutor(2)
FIRST = pool.submit(os.getpid).result()

def handler(event, context):
    return [pool.submit(os.getpid).result(timeout=30), os.getpid()]
"""
    forking = zygote(app)
    done, own = forking.answer()
    assert done == own
    assert "threads" in forking.reason and "ThreadPoolExecutor" in forking.reason


def test_a_thread_started_at_import_lives(zygote):
    app = """
import threading
asked, answered = threading.Event(), threading.Event()

def serve():
    asked.wait()
    answered.set()

threading.Thread(target=serve, daemon=True, name="poller").start()

def handler(event, context):
    asked.set()
    return answered.wait(30)
"""
    forking = zygote(app)
    assert forking.answer() is True
    assert "poller" in forking.reason


NATIVE = """
import ctypes, os
libc = ctypes.CDLL(None)
thread = ctypes.c_ulong()
assert libc.pthread_create(ctypes.byref(thread), None, libc.pause, None) == 0
NAME and libc.pthread_setname_np(thread, NAME)
PID = os.getpid()

def handler(event, context):
    return [len(os.listdir("/proc/self/task")), PID == os.getpid()]
"""


def test_a_native_thread_that_no_library_restarts_is_noticed(zygote):
    forking = zygote(NATIVE.replace("NAME", "None"))
    assert forking.answer() == [2, True]
    assert "of a library" in forking.reason


def test_a_native_thread_that_its_library_restarts_is_no_reason(zygote):
    forking = zygote(NATIVE.replace("NAME", "b'jemalloc_bg_thd'"))
    assert forking.reason is None and forking.answer() == [1, False]


def test_a_pool_of_processes_made_at_import_works(zygote):
    app = """
import multiprocessing
pool = multiprocessing.get_context("fork").Pool(1)

def handler(event, context):
    return pool.apply_async(abs, (-7,)).get(30)
"""
    forking = zygote(app)
    assert forking.answer() == 7
    assert "forked" in forking.reason


@pytest.mark.parametrize(
    "make",
    [
        "__import__('uuid').uuid4().hex",
        "os.urandom(16).hex()",
        "os.getrandom(16).hex()",
        "__import__('secrets').token_hex(16)",
        "__import__('random').random()",
        "__import__('random').Random().random()",
        "__import__('random').SystemRandom().random()",
        "os.path.basename(__import__('tempfile').mkdtemp(dir=os.environ['SCRATCH']))",
    ],
)
def test_an_identity_made_at_import_is_not_that_of_every_instance(zygote, make):
    app = "import os\nIDENTITY = %s\ndef handler(event, context):\n    return IDENTITY\n" % make
    forking = zygote(app)
    assert len({forking.answer() for _ in range(3)}) == 3
    assert forking.reason


def test_a_generator_seeded_at_import_stays_seeded(zygote):
    import random

    app = "import random\nrandom.seed(42)\n"
    app += "def handler(event, context):\n    return random.random()\n"
    expected = random.Random(42).random()
    forking = zygote(app)
    assert [forking.answer(), forking.answer()] == [expected, expected]
    assert "seeded" in forking.reason


@pytest.mark.parametrize(
    "make, use",
    [
        ("open(__file__)", "opened.readline()"),
        ("__import__('asyncio').new_event_loop()", "'import os\\n'"),
    ],
)
def test_what_was_opened_at_import_is_not_shared_by_instances(zygote, make, use):
    app = "import os\nopened = %s\ndef handler(event, context):\n    return %s\n" % (make, use)
    forking = zygote(app)
    # A shared file has a shared position.
    assert [forking.answer(), forking.answer()] == ["import os\n", "import os\n"]
    assert "share what it opened" in forking.reason


def test_a_connection_made_at_import_is_not_shared_by_instances(zygote):
    with socket.create_server(("127.0.0.1", 0)) as server:
        app = """
import os, socket
try:
    with socket.create_connection(("127.0.0.1", int(os.environ["PORT"]))):
        pass
except OSError:
    pass
PID = os.getpid()

def handler(event, context):
    return PID == os.getpid()
"""
        forking = zygote(app, "--sdk", "stock", PORT=str(server.getsockname()[1]))
        assert forking.answer() is True
        assert "network" in forking.reason


def test_ordinary_modules_stay_preloaded(zygote):
    app = """
import asyncio, boto3, concurrent.futures, csv, datetime, hashlib, io, json, logging
import multiprocessing, os, random, secrets, ssl, subprocess, tempfile, threading, urllib.request, uuid, zipfile
from botocore.config import Config
s3 = boto3.client("s3", config=Config(retries={"max_attempts": 2}))
bucket = boto3.resource("s3").Bucket("b")
lock, pool = threading.Lock(), concurrent.futures.ThreadPoolExecutor(4)
rng = random.Random(5)
with open(__file__) as file:
    TEXT = file.read()
logging.getLogger().setLevel("INFO")
with concurrent.futures.ThreadPoolExecutor() as short:
    short.submit(len, "ab").result()
subprocess.run(["true"], check=True)
PID = os.getpid()

def handler(event, context):
    return [PID, pool.submit(os.getpid).result(30) == os.getpid(), os.urandom.__name__]
"""
    forking = zygote(app)
    assert forking.reason is None
    assert forking.answer() == [forking.process.pid, True, "urandom"]


def test_numpy_stays_preloaded_and_its_generator_is_watched(zygote, tmp_path):
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    del numpy
    app = "import numpy.random, os\nPID = os.getpid()\n"
    app += "def handler(event, context):\n    return PID\n"
    forking = zygote(app)
    assert forking.reason is None and forking.answer() == forking.process.pid


@pytest.mark.parametrize("make", ["seed(1)", "random()", "default_rng()", "RandomState()"])
def test_numpys_generators_used_at_import_are_not_those_of_every_instance(zygote, make):
    pytest.importorskip("numpy", reason="numpy is not installed")
    app = "import numpy.random, os\nmade = numpy.random.%s\nPID = os.getpid()\n" % make
    forking = zygote(app + "def handler(event, context):\n    return PID == os.getpid()\n")
    assert forking.answer() is True and forking.reason


def test_a_handler_that_does_not_import_is_told_as_ever(zygote):
    forking = zygote("import nothing_like_it\n")
    head, result = invoke(forking.instance(), "app.handler", {})
    assert head["status"] == "error" and result["errorType"] == "Runtime.ImportModuleError"
    assert forking.reason is None


# `machine.py` waits for every child of its process, so it has a process of its own here.
MACHINE = """
import json, os, sys
from unlade_guest import machine
said = json.loads(sys.argv[1])
machine.unprivileged = lambda user, paths: None
process, resumed, is_ready = machine.started(said, None, int(sys.argv[2]))
assert is_ready
os.close(resumed)
# It was not restored: so it ends.
assert os.waitpid(process, 0)[1] != 0
"""


def test_a_machine_imports_less_where_it_must(tmp_path):
    """The part of `machine.py` without a machine: the process of the function, and another one."""
    (tmp_path / "app.py").write_text("import uuid\nID = uuid.uuid4()\n")
    control, control_end = os.pipe()
    said = {"handler": "app.handler", "modules": ["json"], "user": os.getuid(), "channel": "none"}
    said.update(environment={"LAMBDA_TASK_ROOT": str(tmp_path)}, path=sys.path, region="none")
    command = [sys.executable, "-c", MACHINE, json.dumps(said), str(control_end)]
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    subprocess.run(command, pass_fds=[control_end], env=environment, timeout=300, check=True)
    os.close(control_end)
    told = json.loads(os.read(control, 4096))
    os.close(control)
    assert "uuid" in told["unpreloaded"] or "os.urandom" in told["unpreloaded"]
    assert told["modules"] is False
