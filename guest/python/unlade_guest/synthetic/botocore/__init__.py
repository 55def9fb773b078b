"""botocore for functions on Unlade: the names that functions import; S3's work is the host's."""

__version__ = "1.44.5"
# Attributes that the real one has from the first `import boto3` on.
MODULES = ("client", "config", "errorfactory", "exceptions", "response")


class UNSIGNED:
    """Stands for requests without a signature."""

    def __copy__(self):
        return self

    def __deepcopy__(self, memodict):
        return self


UNSIGNED = UNSIGNED()


def xform_name(name, sep="_"):
    """GetObject -> get_object."""
    from unlade_guest.s3.shape import snake

    return snake(name).replace("_", sep)


def __getattr__(name):
    if name in MODULES:
        import sys

        __import__("botocore." + name)
        return sys.modules["botocore." + name]
    from unlade_guest.real import attribute

    return attribute("botocore", name)
