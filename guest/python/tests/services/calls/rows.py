"""Rows of calls as data, and how they are made.

A table has `SERVICE` (its name in boto3), `setup(client)` (a few calls; returns values by names, or
functions that make them), `STAND_INS` (values for the same names where the setup is not made), and
`ROWS`: steps by the names of rows. Each step is seen: its result, or its exception.
"""

import io


class Given:
    """A value of the setup in a row's parameters; with a template, a text that has it at `%s`."""

    def __init__(self, name, template=None):
        self.name, self.template = name, template

    def of(self, values):
        """The value."""
        found = values[self.name]
        return found if self.template is None else self.template % found


class Values(dict):
    """Values of a setup. One that is costly is a function, and made when it is first asked for."""

    def __getitem__(self, name):
        found = super().__getitem__(name)
        if callable(found):
            found = self[name] = found()
        return found


class File:
    """Bytes that a call reads from a file object."""

    def __init__(self, data):
        self.data = data

    def of(self, _):
        """A fresh file object."""
        return io.BytesIO(self.data)


class Row:
    """Steps, and of the client that makes them: `region` and arguments of `Config`. Reasons:
    `expected`, that the two ways differ for now; `sent_only`, that moto cannot show it."""

    def __init__(self, *steps, region="us-east-1", config=None, expected=None, sent_only=None):
        self.steps, self.region, self.config = steps, region, config
        self.expected, self.sent_only = expected, sent_only


def call(operation, **parameters):
    """A call of a client's method."""
    return "call", operation, parameters


def pages(operation, **parameters):
    """The pages of a paginator; with `search`, what an expression finds in them."""
    return "pages", operation, parameters


def wait(waiter, **parameters):
    """A waiter, which sleeps little."""
    return "wait", waiter, dict({"WaiterConfig": {"Delay": 0, "MaxAttempts": 2}}, **parameters)


def use(function):
    """A function of a trial and the setup's values; its result is seen."""
    return "use", function, {}


def row_of(entry):
    """A `Row` of an entry of a table: a row, a step, or a list of steps."""
    if isinstance(entry, Row):
        return entry
    return Row(*entry) if isinstance(entry, list) else Row(entry)


def fill(value, values):
    """Parameters with the setup's values in their places."""
    if isinstance(value, (Given, File)):
        return value.of(values)
    if isinstance(value, dict):
        return {fill(k, values): fill(v, values) for k, v in value.items()}
    if isinstance(value, list):
        return [fill(item, values) for item in value]
    return value


def made(client, kind, what, given):
    """Makes a step of a client."""
    if kind == "pages":
        search = given.pop("search", None)
        found = client.get_paginator(what).paginate(**given)
        return list(found.search(search) if search else found)
    if kind == "wait":
        return client.get_waiter(what).wait(**given)
    return read(getattr(client, what)(**given))


def read(result):
    """A result with the bytes of its streaming body."""
    if isinstance(result, dict):
        for key, value in result.items():
            if hasattr(value, "iter_chunks"):
                result[key] = value.read()
    return result


class Clients:
    """Clients of one process: they are costly to make, and rows share them."""

    def __init__(self):
        self._made = {}

    def of(self, trial, service, region, config):
        """A client."""
        from botocore import UNSIGNED
        from botocore.config import Config

        key = (service, region, repr(config))
        if key not in self._made:
            given = dict(config or {})
            if given.get("signature_version") == "unsigned":
                given["signature_version"] = UNSIGNED
            more = {} if config is None else {"config": Config(**given)}
            self._made[key] = trial.boto3.client(service, region_name=region, **more)
        return self._made[key]


def run(trial, table, name, clients, real):
    """Makes the steps of a row; with the setup where the server is a `real` one."""
    row = row_of(table.ROWS[name])
    values = table.STAND_INS
    if real:
        values = Values(table.setup(clients.of(trial, table.SERVICE, row.region, None)) or {})
    client = clients.of(trial, table.SERVICE, row.region, row.config)
    for number, (kind, what, parameters) in enumerate(row.steps):
        if kind == "use":
            error = trial.attempt(number, lambda: read(what(trial, values)))
        else:
            given = fill(parameters, values)
            error = trial.attempt(number, lambda: made(client, kind, what, given))
        if isinstance(error, Exception):
            modeled = getattr(client.exceptions, type(error).__name__, None)
            trial.see("class of the client", modeled is type(error))
