"""boto3 for functions on Unlade: S3 goes to the host, everything else to the real boto3."""

from . import exceptions, session  # noqa: F401  the real one has them without being asked
from unlade_guest.session import (
    Session,
    default_client as client,
    default_resource as resource,
    setup_default_session,
)

__version__ = "1.44.5"
DEFAULT_SESSION = None


def set_stream_logger(name="boto3", level=10, format_string=None):
    """Logs of a name to stderr."""
    import logging

    handler = logging.StreamHandler()
    handler.setLevel(level)
    text = format_string or "%(asctime)s %(name)s [%(levelname)s] %(message)s"
    handler.setFormatter(logging.Formatter(text))
    logger = logging.getLogger(name)
    logger.setLevel(level)
    logger.addHandler(handler)


# Attributes that the real one has from the beginning, or from its first client on.
MODULES = {"resources": "boto3.resources.base", "s3": "boto3.s3.transfer"}


def __getattr__(name):
    if name in MODULES:
        import sys

        __import__(MODULES[name])
        return sys.modules["boto3." + name]
    from unlade_guest.real import attribute

    return attribute("boto3", name)
