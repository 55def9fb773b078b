"""The real boto3, loaded when something asks for what is not S3.

It is loaded under its own names beside the synthetic modules, which functions have already: they
stay what `import boto3` gives. Exceptions keep one identity: while a real module of exceptions is
executed, classes of names that exist here already are these. Calls of its clients are cut before
a request is sent, and carried to the host.
"""

import builtins
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder

from . import boto_errors, errors, transfer_errors
from .config import Config as Synthetic
from .finder import HERE, NAMES

# After loading, these names mean the synthetic modules again.
FACADES = ("boto3", "boto3.session")
# Where exceptions of a real module are that exist already.
HOMES = {
    "botocore.exceptions": errors,
    "boto3.exceptions": boto_errors,
    "s3transfer.exceptions": transfer_errors,
}
# Classes that have one of the same name here, for clients that are made here.
TRANSFERS = {
    "boto3.s3.transfer": "S3Transfer",
    "s3transfer": "S3Transfer",
    "s3transfer.manager": "TransferManager",
}
HOW = (
    "%s is not in this function's package: S3 needs no boto3 here, other services do. "
    "Add boto3 to the package, or to the image"
)


class _State:
    """The modules that were loaded in this process."""

    loading = False
    loaded = None
    facades = None


state = _State()


def spec(name):
    """The spec of a real module while the real packages are loaded."""
    parent, _, _ = name.rpartition(".")
    path = None
    if parent:
        path = [p for p in sys.modules[parent].__path__ if not p.startswith(HERE)]
        path = path or _location(parent)
    found = PathFinder.find_spec(name, path)
    return _changed(found)


def _changed(found):
    """A spec of a real module, with the loader that makes it one of ours as well."""
    if found is not None and found.name in HOMES:
        found.loader = _Bridge(found.loader, HOMES[found.name])
    elif found is not None and found.name in TRANSFERS:
        found.loader = _Transfers(found.loader, TRANSFERS[found.name])
    return found


def _location(package):
    """Where a real package is."""
    path = None
    location = None
    for at, _ in enumerate(package.split("."), 1):
        name = ".".join(package.split(".")[:at])
        found = PathFinder.find_spec(name, path)
        if found is None or not found.submodule_search_locations:
            raise ModuleNotFoundError(HOW % name, name=name)
        location = path = list(found.submodule_search_locations)
    return location


class _Bridge:
    """Executes a module of exceptions so that it has the classes that exist already."""

    def __init__(self, loader, home):
        self._loader = loader
        self._home = home

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        make = builtins.__build_class__

        def build(body, name, *bases, **keywords):
            known = vars(self._home).get(name)
            if isinstance(known, type) and issubclass(known, Exception):
                return known
            return make(body, name, *bases, **keywords)

        own = dict(vars(builtins), __build_class__=build)
        module.__dict__["__builtins__"] = own
        code = self._loader.get_code(module.__name__)
        exec(code, module.__dict__)
        for name, value in list(vars(module).items()):
            if isinstance(value, type) and issubclass(value, Exception):
                vars(self._home).setdefault(name, value)


class _Transfers:
    """Executes a module with a class of transfers, which leaves clients of ours to the one of ours.

    The real class listens to requests being made, which no client of ours makes.
    """

    def __init__(self, loader, name):
        self._loader = loader
        self._name = name

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        self._loader.exec_module(module)
        kind = getattr(module, self._name)
        if "__new__" in vars(kind):
            return  # another module has it from the first one

        def new(made, client=None, *args, **kwargs):
            manager = kwargs.get("manager")
            from .s3 import transfer_object
            from .s3.client import BaseClient

            if not isinstance(client or getattr(manager, "client", None), BaseClient):
                return object.__new__(made)
            if made is not kind:
                raise NotImplementedError(
                    "%s is derived from %s, which asks for a client of the real boto3: use boto3's "
                    'own transfers, or `mode = "stock"` in function.toml'
                    % (made.__name__, kind.__name__)
                )
            return getattr(transfer_object, kind.__name__)(client, *args, **kwargs)

        kind.__new__ = staticmethod(new)

    def __getattr__(self, name):
        return getattr(self._loader, name)


class _Loaded:
    """Gives a module that is there already: executed again, its classes would be others.

    The import that led here takes the spec of the module that it finds then, so that is changed.
    """

    def __init__(self, module):
        self._module = module
        self._spec = module.__spec__
        is_package = hasattr(module, "__path__")
        self.instead = ModuleSpec(module.__name__, self, is_package=is_package)
        module.__spec__ = self.instead

    def create_module(self, spec):
        return self._module

    def exec_module(self, module):
        module.__spec__ = self._spec


def outside(name, light):
    """A spec for a real module that has no synthetic one."""
    if name in light and state.loaded is None:
        parent = name.rpartition(".")[0]
        return PathFinder.find_spec(name, _location(parent))
    if state.loaded is None:
        try:
            load()
        except ModuleNotFoundError:
            return None
    parent = name.rpartition(".")[0]
    if name in sys.modules:
        return _Loaded(sys.modules[name]).instead
    return _changed(PathFinder.find_spec(name, _location(parent) if parent else None))


def load():
    """Loads the real boto3. ModuleNotFoundError, which says what to do, where there is none."""
    if state.loaded is not None:
        return state.loaded
    if PathFinder.find_spec("boto3") is None or PathFinder.find_spec("botocore") is None:
        raise ModuleNotFoundError(HOW % "boto3", name="boto3")
    own = {}
    for name in list(sys.modules):
        if name.partition(".")[0] in NAMES and _is_synthetic(sys.modules[name]):
            own[name] = sys.modules.pop(name)
    state.loading = True
    try:
        import boto3
        import boto3.session
        import botocore.session
        import botocore.exceptions
    except BaseException:
        for name in [n for n in sys.modules if n.partition(".")[0] in NAMES]:
            del sys.modules[name]
        sys.modules.update(own)
        raise
    finally:
        state.loading = False
    from .intercept import install_everywhere

    install_everywhere(botocore.session.Session)
    state.loaded = boto3
    for name in FACADES:
        if name in own:
            path = getattr(sys.modules[name], "__path__", None)
            if path is not None:
                own[name].__path__ = list(path)
            sys.modules[name] = own[name]
    return boto3


def _is_synthetic(module):
    return (getattr(module, "__file__", None) or "").startswith(HERE)


def attribute(package, name):
    """An attribute of a real package that the synthetic one has not."""
    if name.startswith("__") or state.loading:
        raise AttributeError("module %r has no attribute %r" % (package, name))
    try:
        real = load() if package == "boto3" else (load(), sys.modules[package])[1]
    except ModuleNotFoundError:
        raise AttributeError("module %r has no attribute %r" % (package, name)) from None
    if not hasattr(real, name):
        raise AttributeError("module %r has no attribute %r" % (package, name))
    return getattr(real, name)


def config(given):
    """A synthetic `Config` as a real one; everything else as it is."""
    from botocore.config import Config

    if not isinstance(given, Synthetic):
        return given
    return Config(**given._user_provided_options)


def session(region, given):
    """A session of the real boto3 with these parameters, whose clients' calls go to the host."""
    os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")
    return load().session.Session(region_name=region, **given)
