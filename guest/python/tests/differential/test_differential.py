"""Each case through stock boto3 and through the stub, against the same server: nothing differs."""

import os
import sys

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import registry  # noqa: E402

CASES = registry.load()
CASES_MIN = 400
DIFFERENCES_SHOWN_MAX = 8


def differences(stock, stub, path=""):
    """Where two observations differ, as lines."""
    if isinstance(stock, dict) and isinstance(stub, dict):
        for name in sorted(set(stock) | set(stub)):
            if name not in stock:
                yield "%s.%s: only the stub has %.120r" % (path, name, stub[name])
            elif name not in stub:
                yield "%s.%s: only stock boto3 has %.120r" % (path, name, stock[name])
            else:
                yield from differences(stock[name], stub[name], "%s.%s" % (path, name))
    elif isinstance(stock, list) and isinstance(stub, list) and len(stock) == len(stub):
        for index, (one, other) in enumerate(zip(stock, stub)):
            yield from differences(one, other, "%s[%d]" % (path, index))
    elif stock != stub or type(stock) is not type(stub):
        yield "%s:\n    stock %.900r\n    stub  %.900r" % (path, stock, stub)


def test_there_are_enough_cases():
    assert len(CASES) >= CASES_MIN


@pytest.mark.parametrize("name", sorted(CASES))
def test_case(name, server, workers):
    results = {}
    for mode, worker in workers.items():
        server.reset()
        results[mode] = worker.run(name)
    for mode in results:
        assert "broken" not in results[mode], "%s:\n%s" % (mode, results[mode]["broken"])
    stock, stub = results["stock"]["seen"], results["stub"]["seen"]
    assert stock, "the case saw nothing"
    found = list(differences(stock, stub))
    if found:
        pytest.fail("\n".join(found[:DIFFERENCES_SHOWN_MAX]), pytrace=False)
