"""moto, a scripted server, and processes that use them: with stock boto3, through the worker."""

import json
import os
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "differential")]

import hosts  # noqa: E402
from hosts import KEY, environment, started, stop  # noqa: E402

SERVICES = (
    "cloudwatch dynamodb events iam kinesis kms lambda logs secretsmanager sns sqs ssm sts"
).split()


class Scripted:
    """The server in `scripted.py`."""

    PROGRAM = "scripted.py"

    def __init__(self):
        self.process = started(self._spawn, self._answers)

    def _spawn(self, port):
        self.endpoint = "http://127.0.0.1:%d" % port
        return subprocess.Popen([sys.executable, os.path.join(HERE, self.PROGRAM), str(port)])

    def _answers(self):
        try:
            self.reset()
            return True
        except OSError:
            return False

    def reset(self):
        """Forgets everything."""
        request = urllib.request.Request(self.endpoint + "/reset", data=b"{}", method="POST")
        urllib.request.urlopen(request, timeout=20).close()

    def close(self):
        """Ends it."""
        stop(self.process)


class Recording(Scripted):
    """The server in `recording.py`."""

    PROGRAM = "recording.py"

    def reset(self):
        """Forgets what it has recorded."""
        self.taken()

    def taken(self):
        """The texts of the requests since the last time."""
        with urllib.request.urlopen(self.endpoint + "/recorded", timeout=20) as answer:
            return json.load(answer)


def configured(endpoint, services):
    """`[services]` of a worker."""
    keys = 'credentials = { from = "keys", access_key_id = "%s", secret_access_key = "%s" }\n'
    out = "[services]\n" + keys % (KEY, KEY)
    return out + "".join("[services.endpoint.%s]\nurl = \"%s\"\n" % (s, endpoint) for s in services)


class Runner:
    """A process that runs cases."""

    def __init__(self, endpoint, host=None):
        self.endpoint = endpoint
        self.host = host
        env = environment(None if host else endpoint)
        keep = ()
        if host is not None:
            for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
                del env[name]
            own = host.channel()
            env["UNLADE_CHANNEL_FD"] = str(own.fileno())
            keep = (own.fileno(),)
        mode = "stub" if host else "stock"
        self.process = subprocess.Popen(
            [sys.executable, os.path.join(HERE, "service_worker.py"), mode],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=env,
            pass_fds=keep,
            text=True,
        )
        if host is not None:
            own.close()
        assert self.process.stdout.readline().strip() == "ready"

    def run(self, name):
        """The observations of a case, or of a row: `[service, name, real]`, with the setup if the
        server is a real one."""
        self.process.stdin.write(json.dumps(name) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "the process ended in %s" % (name,)
        return json.loads(line.replace(self.endpoint, "http://<server>"))

    def close(self):
        """Ends the process and its host."""
        self.process.stdin.close()
        stop(self.process)
        if self.host is not None:
            self.host.close()


class Bench:
    """Two servers of a kind, and a way to each: stock boto3, and the worker. Both go at once."""

    def __init__(self, server, services):
        self.servers = [server(), server()]
        self.server = self.servers[1]
        more = configured(self.server.endpoint, services)
        self.worker = hosts.Worker("http://127.0.0.1:1", more=more)
        ends = zip(self.servers, (None, self.worker))
        self.runners = [Runner(found.endpoint, host) for found, host in ends]
        self.pool = ThreadPoolExecutor(len(self.runners))

    def _each(self, function):
        return list(self.pool.map(function, self.servers, self.runners))

    def see(self, name):
        """The observations of a case or a row, by either."""

        def seen(server, runner):
            server.reset()
            return runner.run(name)

        return self._each(seen)

    def see_sent(self, service, name):
        """The observations of a row, and what the recording server was sent, by either."""

        def seen(server, runner):
            server.reset()
            found = runner.run([service, name, False])
            return found, server.taken()

        return self._each(seen)

    def close(self):
        """Ends all."""
        self.pool.shutdown()
        for runner in self.runners:
            runner.close()
        for server in self.servers:
            server.close()
