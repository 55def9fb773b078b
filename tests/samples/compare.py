"""Comparison of results: what a case names as random or as a time is masked, all else agrees."""

import json
import re

MASK = "(varies)"


class Unused(ValueError):
    """A case names something as varying that its result does not have."""


def masked(result, case):
    """A result with the case's varying places and texts masked. Raises Unused."""
    for place in case.varies:
        if not _mask(result, place.split()):
            raise Unused("varies: no %r in the result" % place)
    text = json.dumps(result, sort_keys=True, ensure_ascii=False)
    for pattern in case.texts:
        text, number = re.subn(pattern, MASK, text)
        if not number:
            raise Unused("texts: no %r in the result" % pattern)
    return _ordered(json.loads(text, object_pairs_hook=_numbered))


def _mask(value, parts):
    """Masks a place; whether it is there. `*` is every name or number, `json` that in a text."""
    name, rest = parts[0], parts[1:]
    if isinstance(value, dict):
        keys = list(value) if name == "*" else [name] if name in value else []
    elif isinstance(value, list):
        keys = range(len(value)) if name == "*" else [int(name)] if name.isdigit() else []
        keys = [key for key in keys if key < len(value)]
    else:
        return False
    found = False
    for key in keys:
        if not rest:
            value[key], found = MASK, True
        elif rest[0] == "json" and isinstance(value[key], str):
            inner = json.loads(value[key])
            found |= _mask(inner, rest[1:])
            value[key] = json.dumps(inner)
        else:
            found |= _mask(value[key], rest)
    return found


def _numbered(pairs):
    """A dictionary in which names that a mask has made the same have numbers, in the order of values."""
    values = {}
    for name, value in pairs:
        values.setdefault(name, []).append(value)
    out = {}
    for name, found in values.items():
        found.sort(key=lambda value: json.dumps(value, sort_keys=True))
        for number, value in enumerate(found, 1):
            out["%s %d" % (name, number) if number > 1 else name] = value
    return out


def _ordered(result):
    """Items of tables have no order."""
    tables = result.get("effects", {}).get("dynamodb", {})
    for name in tables:
        tables[name].sort(key=lambda item: json.dumps(item, sort_keys=True))
    return result


def differences(one, other, place=""):
    """Yields the places at which two results differ, and the two values."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted(set(one) | set(other)):
            absent = "(absent)"
            yield from differences(one.get(key, absent), other.get(key, absent), place + " " + key)
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for number, pair in enumerate(zip(one, other)):
            yield from differences(*pair, "%s %d" % (place, number))
    elif one != other or type(one) is not type(other):
        yield place.strip(), one, other
