"""Fixtures: a host in this process, and the guest's end of its channel."""

import os
import sys

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from instances import Served, Store  # noqa: E402


@pytest.fixture
def store():
    return Store()


@pytest.fixture
def served(store):
    """A session whose guest is this process."""
    found = Served(store)
    yield found
    found.close()


@pytest.fixture
def link(served):
    """The guest's channel in this process."""
    from unlade_guest import current

    current.drop()
    made = current.connect(served.guest_end.detach())
    yield made
    made.close()
    current.drop()
