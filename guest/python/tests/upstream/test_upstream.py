"""Other packages' own tests through the guest: what passes with stock boto3 passes here.

Without `UPSTREAM=all` only the files run that `Suite.quick` names.
"""

import json
import os
import subprocess
import sys
import tempfile

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
for beside in ("differential", "services"):
    sys.path.insert(0, os.path.join(os.path.dirname(HERE), beside))

import hosts  # noqa: E402
import sources  # noqa: E402
from service_hosts import configured  # noqa: E402
from stores import Moto  # noqa: E402
from suites import SUITES  # noqa: E402


class Run:
    """A suite in a process of its own, with a store of its own."""

    def __init__(self, suite, where, mode):
        self.store = Moto()
        self.host = None
        self.seconds_max = suite.seconds_max
        self.folder = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.folder.name, "outcomes")
        env = hosts.environment(self.store.endpoint)
        env.update(suite.environment, TEST_SERVER_MODE_ENDPOINT=self.store.endpoint)
        keep = ()
        if mode == "stub":
            more = configured(self.store.endpoint, suite.services)
            self.host = hosts.Worker(self.store.endpoint, more=more)
            own = self.host.channel()
            env["UNLADE_CHANNEL_FD"] = str(own.fileno())
            keep = (own.fileno(),)
            # What does not go through the host fails.
            for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
                del env[name]
        command = [sys.executable, os.path.join(HERE, "worker.py"), mode, self.path]
        command += ["--continue-on-collection-errors", "-p", "no:warnings"]
        command += ["--rootdir", where, "-c", where + "/pytest.ini"]
        for name in suite.left_out:
            command += ["--deselect", name]
        for name in suite.silent(where):
            command += ["--ignore", name]
        with open(self.path + ".log", "w") as log:
            self.process = subprocess.Popen(
                command + suite.chosen(),
                cwd=where,
                env=env,
                pass_fds=keep,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        if keep:
            own.close()

    def outcomes(self):
        """What became of each test."""
        self.process.wait(self.seconds_max)
        if not os.path.exists(self.path):
            with open(self.path + ".log") as log:
                pytest.fail("the run broke:\n" + log.read()[-4000:], pytrace=False)
        with open(self.path) as file:
            return json.load(file)

    def close(self):
        """Ends all of it."""
        hosts.stop(self.process)
        if self.host is not None:
            self.host.close()
        self.store.close()
        self.folder.cleanup()


def outcomes_of(suite, where):
    """Of stock boto3 and of the stub, run beside each other."""
    runs = []
    try:
        for mode in ("stock", "stub"):
            runs.append(Run(suite, where, mode))
        return [run.outcomes() for run in runs]
    finally:
        for run in runs:
            run.close()


@pytest.mark.parametrize("name", sorted(SUITES))
def test_what_passes_with_stock_boto3_passes_through_the_stub(name, capsys):
    if hosts.binary() is None:
        pytest.skip("unlade is not built: cargo build, or UNLADE_BIN")
    suite = SUITES[name]
    try:
        where = sources.tests_of(suite.package)
    except sources.Missing as missing:
        pytest.skip(str(missing))
    stock, stub = outcomes_of(suite, where)
    passed = [test for test in stock if stock[test]["outcome"] == "passed"]
    through = [test for test in passed if stub.get(test, {}).get("outcome") == "passed"]
    with capsys.disabled():
        print(
            "\n%s: %d of %d tests that pass with stock boto3 pass through the stub"
            % (name, len(through), len(passed))
        )
    missed = {test: stub.get(test, {}).get("why", "did not run") for test in passed}
    missed = {test: why for test, why in missed.items() if test not in through}
    unexpected = ["%s\n%s" % item for item in missed.items() if not suite.why(item[0])]
    assert not unexpected, "\n\n".join(unexpected)
    repaired = [test for test in through if suite.why(test)]
    assert not repaired, "listed in OTHERWISE, and they pass: %s" % repaired
    assert len(through) >= suite.least, "most of the suite did not run"
