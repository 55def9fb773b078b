"""moto and a scripted server, each with stock boto3 and with the worker."""

import os
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "differential")]

import calls  # noqa: E402
import hosts  # noqa: E402
from service_hosts import SERVICES, Bench, Recording, Scripted  # noqa: E402
from stores import Moto  # noqa: E402


def made(server, services):
    """A bench of servers of a kind, where there is a worker."""
    if hosts.binary() is None:
        pytest.skip("unlade is not built: cargo build, or UNLADE_BIN")
    found = Bench(server, services)
    yield found
    found.close()


@pytest.fixture(scope="session")
def moto_services():
    """moto."""
    yield from made(Moto, SERVICES)


@pytest.fixture(scope="session")
def scripted_services():
    """The scripted server."""
    yield from made(Scripted, ["bedrock-runtime", "dynamodb"])


@pytest.fixture(scope="session")
def recording_services():
    """The recording server."""
    yield from made(Recording, SERVICES)


def pytest_terminal_summary(terminalreporter):
    """Says how many cases there are of each service."""
    found = calls.counts(calls.load())
    text = ", ".join("%s %d" % pair for pair in sorted(found.items()))
    terminalreporter.write_line("cases by service: %s; together %d" % (text, sum(found.values())))
