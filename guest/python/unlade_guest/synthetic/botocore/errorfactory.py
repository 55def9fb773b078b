"""botocore.errorfactory: where the service's own exceptions say that they are from."""

from unlade_guest.errors import ClientError
from unlade_guest.errors import S3Exceptions as BaseClientExceptions

__all__ = ["BaseClientExceptions", "ClientError"]


def __getattr__(name):
    from unlade_guest.s3.client import EXCEPTIONS

    if name in EXCEPTIONS._code_to_exception:
        return EXCEPTIONS._code_to_exception[name]
    raise AttributeError("module 'botocore.errorfactory' has no attribute %r" % name)
