"""Makes `import boto3` find the modules in `synthetic/`, whatever else is on the path.

`install()` is called by `unlade_guest.pth` at the start of the interpreter, before any function's
own directory is on `sys.path`; a finder on `sys.meta_path` comes before all of that.
"""

import os
import sys

NAMES = ("boto3", "botocore", "s3transfer")
HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "synthetic")
# Modules of the real packages that stand alone, and do not bring the rest with them.
LIGHT = (
    "boto3.dynamodb",
    "boto3.dynamodb.conditions",
    "boto3.dynamodb.types",
    "boto3.compat",
    "botocore.vendored",
)


class Finder:
    """Serves synthetic modules; loads the real packages where something else of them is wanted."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        """A spec for a module of these packages; None for every other one."""
        if name.partition(".")[0] not in NAMES:
            return None
        real = sys.modules.get("unlade_guest.real")
        if real is not None and (real.state.loading or real.state.loaded):
            return real.spec(name)
        found = synthetic(name)
        if found is not None:
            return found
        from . import real

        return real.outside(name, LIGHT)


def synthetic(name):
    """The spec of a synthetic module, or None."""
    # `importlib.util` has this function too, and much around it.
    from _frozen_importlib_external import spec_from_file_location

    base = os.path.join(HERE, *name.split("."))
    package = os.path.join(base, "__init__.py")
    if os.path.isfile(package):
        return spec_from_file_location(name, package, submodule_search_locations=[base])
    if os.path.isfile(base + ".py"):
        return spec_from_file_location(name, base + ".py")
    return None


def remove():
    """Takes the finder away, before anything of it was imported: the real packages are found."""
    if Finder in sys.meta_path:
        sys.meta_path.remove(Finder)


def install():
    """Puts the finder first. Once is enough."""
    os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")
    if Finder not in sys.meta_path:
        from . import keys

        keys.note()
        sys.meta_path.insert(0, Finder)
