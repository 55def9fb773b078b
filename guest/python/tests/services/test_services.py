"""Services other than S3, with stock boto3 and through the worker: the same is seen."""

import json
import os
import subprocess
import sys
import urllib.request

import hosts
import pytest
import service_cases
from conftest import KEY, configured

DIFFERENCES_SHOWN_MAX = 20
HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPTED = [name for name in service_cases.CASES if name.startswith("scripted_")]
NAMES = [name for name in service_cases.CASES if name not in SCRIPTED]


def differences(one, other, path=""):
    """Where two JSON values differ."""
    if type(one) is not type(other):
        yield "%s: %.300r != %.300r" % (path, one, other)
    elif isinstance(one, dict):
        for key in sorted(set(one) | set(other)):
            if key not in one or key not in other:
                yield "%s.%s: only %s has it" % (path, key, "stock" if key in one else "the cut")
            else:
                yield from differences(one[key], other[key], "%s.%s" % (path, key))
    elif isinstance(one, list):
        if len(one) != len(other):
            yield "%s: %d and %d entries: %.300r %.300r" % (path, len(one), len(other), one, other)
        for at, (a, b) in enumerate(zip(one, other)):
            yield from differences(a, b, "%s[%d]" % (path, at))
    elif one != other:
        yield "%s: %.300r != %.300r" % (path, one, other)


def compare(bench, name):
    """Runs a case in both ways."""
    stock, cut = bench.see(name)
    for result in (stock, cut):
        assert not result.get("broken"), result["broken"]
    assert stock["seen"], "the case saw nothing"
    found = list(differences(stock["seen"], cut["seen"]))
    if found:
        pytest.fail("\n".join(found[:DIFFERENCES_SHOWN_MAX]), pytrace=False)


@pytest.mark.parametrize("name", NAMES)
def test_case(name, moto_services):
    compare(moto_services, name)


@pytest.mark.parametrize("name", SCRIPTED)
def test_case_with_a_server_that_fails(name, scripted_services):
    compare(scripted_services, name)
