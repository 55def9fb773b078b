"""Which boto3 a function gets: the stub, or for comparisons the real one.

`stub`: calls are the host's. `stock`: the real boto3, with whatever network there is. `tcp`: the
real boto3, its TCP connections over the host's relay (`relay.py`).
"""

import os

from . import finder, keys

STUB, STOCK, TCP = "stub", "stock", "tcp"
# Modules that an instance needs at once; the template imports them to share their memory.
SHARED = ("boto3", "botocore.exceptions", "unlade_guest.s3.client")


def install(sdk):
    """Makes `import boto3` find it. ValueError for another name."""
    if sdk == STUB:
        finder.install()
        # A machine has its environment since.
        keys.note()
        return
    if sdk not in (STOCK, TCP):
        raise ValueError("an SDK is stub, stock or tcp, not %s" % sdk)
    finder.remove()
    os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")
    if sdk == TCP:
        from . import relay

        relay.install()


def shared(sdk):
    """Modules that a zygote imports beside those it is told to."""
    return SHARED if sdk == STUB else ()
