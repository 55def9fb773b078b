"""TCP connections of the real boto3 over the host's relay: a stream socket at `UNLADE_RELAY_PATH`.

For comparisons: the SDK, its TLS and its HTTP stay in the instance, TCP does not. Where urllib3
makes connections is changed when it is imported, which is when the function imports boto3.
"""

import os
import sys

MODULE = "urllib3.util.connection"


def create_connection(address, timeout=None, source_address=None, socket_options=None):
    """A connection to the relay, whatever the address: it knows one store."""
    import socket

    path = os.environ.get("UNLADE_RELAY_PATH")
    if not path:
        raise OSError("UNLADE_RELAY_PATH is not set: there is no way to %s:%s" % address[:2])
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Some callers give an object that stands for "as ever".
        end.settimeout(timeout if timeout is None or isinstance(timeout, (int, float)) else None)
        end.connect(path)
    except BaseException:
        end.close()
        raise
    return end


class _Loader:
    """The module's own loader, and then the change."""

    def __init__(self, loader):
        self._loader = loader

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        self._loader.exec_module(module)
        module.create_connection = create_connection

    def __getattr__(self, name):
        return getattr(self._loader, name)


class Finder:
    """Finds the one module that is changed."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        """The spec that others have found, with another loader."""
        if name != MODULE:
            return None
        for finder in sys.meta_path:
            if finder is Finder or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _Loader(spec.loader)
                return spec
        return None


def install():
    """Before urllib3 is imported."""
    if Finder not in sys.meta_path:
        sys.meta_path.insert(0, Finder)
    loaded = sys.modules.get(MODULE)
    if loaded is not None:
        loaded.create_connection = create_connection
