"""Tables of calls, a module a service: `setup`, `STAND_INS`, `ROWS` (see `rows.py`)."""

import importlib
import os
import pkgutil

HERE = os.path.dirname(os.path.abspath(__file__))


def load():
    """Modules with a table, by the names of their services."""
    found = {}
    for module in pkgutil.iter_modules([HERE]):
        if module.name != "rows":
            loaded = importlib.import_module("%s.%s" % (__name__, module.name))
            found[loaded.SERVICE] = loaded
    return found


def names(tables):
    """The rows of all tables, as `service/name`."""
    return [
        "%s/%s" % (service, row) for service, table in sorted(tables.items()) for row in table.ROWS
    ]


def counts(tables):
    """Cases by service: rows, and for S3 those of the differential suite beside this one."""
    import registry

    found = {service: len(table.ROWS) for service, table in sorted(tables.items())}
    return dict(found, s3=len(registry.load()))
