"""Parameters as they must be, and botocore's words where they are not."""

from _datetime import datetime

from ..errors import ParamValidationError
from .shape import structure

TYPES = {
    "s": ((str,), "<class 'str'>"),
    "i": ((int,), "<class 'int'>"),
    "b": ((bool,), "<class 'bool'>"),
    "m": ((dict,), "<class 'dict'>"),
    "{": ((dict,), "<class 'dict'>"),
    "[": ((list, tuple), "<class 'list'>, <class 'tuple'>"),
}
BLOB = "<class 'bytes'>, <class 'bytearray'>, file-like object"
INSTANT = "<class 'datetime.datetime'>, timestamp-string"


def check(parameters, shape):
    """Raises ParamValidationError with everything that is wrong with an operation's parameters."""
    reports = []
    _structure(parameters, shape, "", reports)
    if reports:
        raise ParamValidationError(report="\n".join(reports))


def _name(path):
    if not path:
        return "input"
    return path[1:] if path[0] == "." else path


def _structure(value, shape, path, reports):
    for name in shape.required:
        if name not in value:
            reports.append('Missing required parameter in %s: "%s"' % (_name(path), name))
    members = shape.members
    for name in value:
        if name not in members:
            reports.append(
                'Unknown parameter in %s: "%s", must be one of: %s'
                % (_name(path), name, ", ".join(members))
            )
    for name, item in value.items():
        if name in members:
            kind, least = members[name]
            _value(item, kind, least, path + "." + name, reports)


def _wrong(value, path, types, reports):
    reports.append(
        "Invalid type for parameter %s, value: %s, type: %s, valid types: %s"
        % (_name(path), value, type(value), types)
    )


def _value(value, kind, least, path, reports):
    first = kind[0]
    expected = TYPES.get(first)
    if expected is None:
        return _blob(value, path, reports) if first in "oB" else _instant(value, path, reports)
    if not isinstance(value, expected[0]):
        return _wrong(value, path, expected[1], reports)
    if first == "s":
        if len(value) < least:
            _short("length", len(value), least, path, reports)
    elif first == "i":
        if value < least and least:
            _short("value", value, least, path, reports)
    elif first == "{":
        _structure(value, structure(kind[1:]), path, reports)
    elif first == "[":
        for index, item in enumerate(value):
            _value(item, kind[1:], 0, "%s[%d]" % (path, index), reports)
    elif first == "m":
        for name, item in value.items():
            _value(name, "s", 0, "%s (key: %s)" % (path, name), reports)
            _value(item, "s", 0, "%s.%s" % (path, name), reports)
    return None


def _short(what, value, least, path, reports):
    reports.append(
        "Invalid %s for parameter %s, value: %s, valid min %s: %d"
        % (what, _name(path), value, what, least)
    )


def _blob(value, path, reports):
    if not isinstance(value, (bytes, bytearray, str)) and not hasattr(value, "read"):
        _wrong(value, path, BLOB, reports)


def _instant(value, path, reports):
    try:
        instant_of(value)
    except (TypeError, ValueError, OverflowError, AttributeError):
        _wrong(value, path, INSTANT, reports)


def instant_of(value):
    """The aware datetime that botocore takes a value for; a naive one is local time."""
    if isinstance(value, datetime):
        return value.astimezone() if value.tzinfo is None else value
    from .instants import parse

    return parse(value)
