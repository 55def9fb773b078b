"""botocore.exceptions."""

from unlade_guest.errors import *  # noqa: F403
from unlade_guest.errors import named


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return named(name)
