"""Cases: functions that use boto3 as a function would, and say what they see."""

import importlib
import os
import pkgutil

CASES = {}
HERE = os.path.dirname(os.path.abspath(__file__))


def case(*parameters):
    """Registers a case, once for each of `parameters` (tuples, or single values)."""

    def register(function):
        module = function.__module__.rpartition(".")[2]
        for index, given in enumerate(parameters or [()]):
            arguments = given if isinstance(given, tuple) else (given,)
            name = "%s/%s" % (module, function.__name__)
            if parameters:
                name += "[%d]" % index
            assert name not in CASES, name
            CASES[name] = (function, arguments)
        return function

    return register


def load():
    """Imports every module of cases."""
    package = __name__.rpartition(".")[0]
    prefix = package + ".cases" if package else "cases"
    for found in pkgutil.iter_modules([os.path.join(HERE, "cases")]):
        importlib.import_module(prefix + "." + found.name)
    return CASES
