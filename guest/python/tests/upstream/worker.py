"""Runs tests of another package with whichever boto3 this process is told; outcomes as JSON.

python worker.py stock|stub OUTCOMES PYTEST_ARGUMENT...
"""

import json
import os
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
WHY_CHARS_MAX = 2000


class Outcomes:
    """What became of each test: passed, failed or skipped, and why not."""

    def __init__(self):
        self.found = {}

    def pytest_runtest_logreport(self, report):
        """The worst of set-up, test and clean-up counts."""
        said = self.found.setdefault(report.nodeid, {"outcome": "passed"})
        if report.outcome == "failed" and said["outcome"] != "failed":
            said.update(outcome="failed", why=report.longreprtext[-WHY_CHARS_MAX:])
        elif report.outcome == "skipped" and said["outcome"] == "passed":
            said.update(outcome="skipped", why=str(report.longrepr)[-WHY_CHARS_MAX:])

    def pytest_collectreport(self, report):
        """A file that cannot be imported is a failure, too."""
        if report.outcome == "failed":
            why = report.longreprtext[-WHY_CHARS_MAX:]
            self.found[report.nodeid] = {"outcome": "failed", "why": why}


def _sleep_less():
    """Tests wait until a store far away agrees with itself; one of this machine does at once."""
    most = float(os.environ.get("UPSTREAM_SLEEP_SECONDS_MAX", "inf"))
    sleep = time.sleep
    time.sleep = lambda seconds: sleep(min(seconds, most))


def main():
    """Runs pytest; writes the outcomes."""
    mode, path, arguments = sys.argv[1], sys.argv[2], sys.argv[3:]
    if mode == "stub":
        sys.path.insert(0, os.path.dirname(os.path.dirname(HERE)))
        from unlade_guest import finder

        finder.install()
    import boto3

    assert ("unlade_guest" in boto3.__file__) == (mode == "stub"), boto3.__file__
    import pytest

    _sleep_less()
    outcomes = Outcomes()
    pytest.main(["-q", "-p", "no:cacheprovider", *arguments], plugins=[outcomes])
    with open(path, "w") as file:
        json.dump(outcomes.found, file)


if __name__ == "__main__":
    main()
