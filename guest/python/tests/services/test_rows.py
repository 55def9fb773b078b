"""Rows of calls: what a function sees of moto, and what a server is sent, is that of stock boto3."""

import json

import calls
import pytest
from calls import rows
from test_services import DIFFERENCES_SHOWN_MAX, differences

TABLES = calls.load()
NAMES = calls.names(TABLES)


def row_named(name):
    """The row of a name."""
    service, _, row = name.partition("/")
    return rows.row_of(TABLES[service].ROWS[row])


OF_MOTO = [name for name in NAMES if not row_named(name).sent_only]

CASES_MIN, ROWS_MIN, ROWS_OF_A_SERVICE_MIN, SERVICES_MIN = 1000, 400, 25, 10


def test_there_are_enough_cases():
    found = calls.counts(TABLES)
    assert sum(found.values()) >= CASES_MIN, found
    assert len(NAMES) >= ROWS_MIN, found
    many = [
        service for service, table in TABLES.items() if len(table.ROWS) >= ROWS_OF_A_SERVICE_MIN
    ]
    assert len(many) >= SERVICES_MIN, found


def whole(result):
    """The observations of a row that has not broken."""
    if result.get("broken"):
        pytest.fail(result["broken"], pytrace=False)
    assert result["seen"], "the row saw nothing"
    return result["seen"]


def judge(row, lines):
    """Fails for differences that are not expected, and where those that are expected are not there."""
    if row.expected and lines:
        pytest.xfail(row.expected)
    if row.expected:
        pytest.fail("nothing differs, and `expected` says: " + row.expected, pytrace=False)
    if lines:
        pytest.fail("\n".join(lines[:DIFFERENCES_SHOWN_MAX]), pytrace=False)


def refused(value):
    """True if moto says in an answer that it has failed, or has not such an operation."""
    if isinstance(value, dict):
        status = value.get("HTTPStatusCode")
        return (status or 0) >= 500 or any(refused(item) for item in value.values())
    return isinstance(value, list) and any(refused(item) for item in value)


@pytest.mark.parametrize("name", OF_MOTO)
def test_row(name, moto_services):
    service, _, row = name.partition("/")
    stock, cut = (whole(result) for result in moto_services.see([service, row, True]))
    assert not refused(stock), "moto has not this operation: %.900s" % stock
    judge(row_named(name), list(differences(stock, cut)))


@pytest.mark.parametrize("name", NAMES)
def test_row_as_sent(name, recording_services):
    service, _, row = name.partition("/")
    (stock, sent), (cut, sent_by_host) = recording_services.see_sent(service, row)
    lines = list(differences(whole(stock), whole(cut)))
    assert ("x-recorded" in json.dumps(stock["seen"])) == bool(sent), "something else has answered"
    if sent != sent_by_host:
        texts = ["\n\n".join(part) or "nothing" for part in (sent, sent_by_host)]
        lines.insert(0, "stock sends:\n%s\n\nthe host sends:\n%s\n" % tuple(texts))
    judge(row_named(name), lines)
