"""Each case through stock boto3 and through the stub, against the same store: nothing differs.

The stub's calls are carried by the reference host, and by the worker of the host.
"""

import os
import re
import sys

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import registry  # noqa: E402
from conftest import need_binary  # noqa: E402

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


NAMES = sorted(name for name in CASES if not name.startswith("faults/"))
FAULTS = sorted(name for name in CASES if name.startswith("faults/"))


# Writes of an invocation, which the worker acknowledges before the store has them.
EARLY = [name for name in NAMES if name.startswith(("objects/", "conditions/writing"))]
# What of an answer is the store's own affair: the worker's has it not, or otherwise.
OWN = re.compile(
    r"\.HTTPHeaders\.(access-control-allow-origin|connection|content-type|last-modified|server|"
    r"x-amz-request-id|x-amz-sdk-checksum-algorithm|x-amzn-requestid): only "
)
# Stock boto3 waits for `100 Continue` before a body; a store that refuses one may end the connection.
CLOSES = r"\.HTTPHeaders\.connection: only stock boto3 has 'close'"


def compare(bench, who, name, but=None):
    """Fails where stock boto3 and another one saw different things."""
    results = {mode: bench.see(mode, name) for mode in ("stock", who)}
    stock, stub = results["stock"]["seen"], results[who]["seen"]
    broken = [bool(result.get("broken")) for result in results.values()]
    if all(broken) and bench.store.lacks(results["stock"]["broken"]):
        # The case cannot go on in this store: both have come as far, and for the same reason.
        ends = [result["broken"].splitlines()[-1] for result in results.values()]
        stock, stub = stock + [["broken", ends[0]]], stub + [["broken", ends[1]]]
    else:
        for mode, result in results.items():
            assert not result.get("broken"), "%s:\n%s" % (mode, result["broken"])
    assert stock, "the case saw nothing"
    found = [line for line in differences(stock, stub) if not (but and but.search(line))]
    if found:
        pytest.fail("\n".join(found[:DIFFERENCES_SHOWN_MAX]), pytrace=False)


# The reference host shows that the guest keeps to the protocol whatever host it has; the cases show
# the calls, which are the worker's. A part of them is enough for the former; `all` takes each.
SHARE = 1 if os.environ.get("UNLADE_DIFFERENTIAL") == "all" else 4
WITH_HOSTS = [("worker", name) for name in NAMES] + [("reference", name) for name in NAMES[::SHARE]]


@pytest.mark.parametrize("host,name", WITH_HOSTS)
def test_case(host, name, moto):
    if host != "reference":
        need_binary()
    compare(moto, host, name)


@pytest.mark.parametrize("name", EARLY)
def test_case_acknowledged_early(name, moto):
    need_binary()
    compare(moto, "pending", name, but=OWN)


@pytest.mark.parametrize("name", NAMES)
def test_case_with_the_built_in_store(name, built_in):
    if name in built_in.store.OTHERWISE:
        pytest.skip(built_in.store.OTHERWISE[name])
    compare(built_in, "worker", name, but=re.compile(CLOSES))


# Its limits depend on how much memory it has found.
MINIO = CLOSES + r"|\.HTTPHeaders\.x-ratelimit-\w+:"
# Over TLS it takes customers' keys; what it encrypts has an ETag out of random numbers.
RANDOM = r"\.(ETag|HTTPHeaders\.etag):"
# What goes over TLS as it goes without: one case of each kind, and large bodies.
KINDS = ("large/", "objects/", "streaming/", "transfers/")
ENCRYPTED = [name for name in NAMES if name.startswith(KINDS)]


@pytest.mark.parametrize("name", NAMES)
def test_case_with_minio(name, minio):
    if name in minio.store.OTHERWISE:
        pytest.skip(minio.store.OTHERWISE[name])
    compare(minio, "worker", name, but=re.compile(MINIO))


@pytest.mark.parametrize("name", ENCRYPTED)
def test_case_with_minio_over_tls(name, minio_tls):
    if name in minio_tls.store.OTHERWISE_OVER_TLS:
        pytest.skip(minio_tls.store.OTHERWISE_OVER_TLS[name])
    more = "|" + RANDOM if name.startswith("objects/customer_keys") else ""
    compare(minio_tls, "worker", name, but=re.compile(MINIO + more))


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("host", ["reference", "worker"])
def test_case_with_a_store_that_fails(host, name, faulty):
    if host != "reference":
        need_binary()
    compare(faulty, host, name)
