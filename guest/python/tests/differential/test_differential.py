"""Each case through stock boto3 and through the stub, against the same server: nothing differs."""

import os
import sys

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import registry  # noqa: E402

CASES = registry.load()
CASES_MIN = 400


def test_there_are_enough_cases():
    assert len(CASES) >= CASES_MIN


@pytest.mark.parametrize("name", sorted(CASES))
def test_case(name, server, workers):
    results = {}
    for mode, worker in workers.items():
        server.reset()
        results[mode] = worker.run(name)
    assert "broken" not in results["stock"], results["stock"].get("broken")
    assert "broken" not in results["stub"], results["stub"].get("broken")
    assert results["stock"]["seen"], "the case saw nothing"
    assert results["stub"]["seen"] == results["stock"]["seen"]
