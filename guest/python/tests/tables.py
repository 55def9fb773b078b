"""Makes the tables of S3's operations out of botocore's description of them.

    python tests/tables.py           compares unlade_guest/s3/*_table.py and the versions of the
                                     synthetic packages with it
    python tests/tables.py --write   writes them

Tables hold names, kinds and constraints only.
"""

import importlib.metadata
import os
import re
import sys
import textwrap

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.join(os.path.dirname(HERE), "unlade_guest", "s3")
# `ELSEWHERE` of shape.py.
LEFT_OUT = {"CreateSession", "UpdateObjectEncryption", "WriteGetObjectResponse"}
MARKS = {
    "identifier": "",
    "data": "@",
    "requestParameter": "$",
    "response": "#",
    "input": "?",
    "string": "'",
}
KINDS = {"string": "s", "integer": "i", "long": "i", "boolean": "b", "timestamp": "t", "map": "m"}


def data(package, name):
    """A description of botocore's or boto3's, as their loader merges it."""
    from botocore.loaders import Loader

    module = __import__(package)
    base = os.path.join(os.path.dirname(module.__file__), "data")
    return Loader(extra_search_paths=[base]).load_service_model("s3", name)


def kind(shapes, name, wanted, streaming):
    """How the table writes a member's kind."""
    shape = shapes[name]
    least = str(shape["min"]) if shape.get("min") else ""
    if shape["type"] == "structure":
        wanted.append(name)
        return "{" + name
    if shape["type"] == "list":
        inner = kind(shapes, shape["member"]["shape"], wanted, False)
        assert not least, name
        return "[" + inner
    if shape["type"] == "blob":
        return "B" if streaming else "o"
    if shape["type"] == "map":
        assert shapes[shape["value"]["shape"]]["type"] == "string"
    return KINDS[shape["type"]] + least


def members(shapes, name, wanted):
    """A structure as one line."""
    shape = shapes[name]
    required = shape.get("required", [])
    assert not shape.get("union"), name
    out = []
    for member, target in shape.get("members", {}).items():
        streaming = shape.get("payload") == member
        mark = "!" if member in required else ""
        out.append("%s%s:%s" % (member, mark, kind(shapes, target["shape"], wanted, streaming)))
    order = [m for m in required if m in shape["members"]]
    in_order = [m for m in shape["members"] if m in required]
    if order != in_order:
        out.append("|" + ",".join(order))
    return " ".join(out)


def quoted(name, text):
    """An entry of a dictionary, within 100 columns."""
    if len(name) + len(text) < 86:
        return '    "%s": "%s",\n' % (name, text)
    lines = textwrap.wrap(text, 88, break_long_words=False, break_on_hyphens=False)
    body = "".join('        "%s%s"\n' % (line, "" if line is lines[-1] else " ") for line in lines)
    return '    "%s": (\n%s    ),\n' % (name, body)


def operations_table():
    """The text of operations_table.py."""
    model = data("botocore", "service-2")
    shapes = model["shapes"]
    operations, wanted = {}, []
    for name, operation in sorted(model["operations"].items()):
        if name not in LEFT_OUT:
            shape = operation.get("input", {}).get("shape")
            operations[name] = members(shapes, shape, wanted) if shape else ""
    structures = {}
    while wanted:
        name = wanted.pop()
        if name not in structures:
            structures[name] = ""
            structures[name] = members(shapes, name, wanted)
    errors = [name for name, shape in shapes.items() if shape.get("exception")]
    text = '"""S3\'s operations. Made by tests/tables.py; see `shape.py` for how to read it."""\n\n'
    text += "OPERATIONS = {\n" + "".join(quoted(*item) for item in operations.items()) + "}\n"
    text += "STRUCTURES = {\n" + "".join(quoted(*item) for item in sorted(structures.items()))
    return text + "}\n" + listed("ERRORS", errors)


def listed(name, values):
    """A tuple of names, out of a text."""
    lines = textwrap.wrap(" ".join(values), 90)
    return '%s = """\n%s\n""".split()\n' % (name, "\n".join("    " + line for line in lines))


def snake(name):
    """GetObjectACL -> get_object_acl."""
    name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower()


def parameters(request):
    """Parameters of a request: as assignments."""
    return " ".join(assignment(item) for item in request.get("params", []))


def assignment(item):
    """`Target=source`: an identifier, @data, $parameter, #response, ?input or 'constant."""
    source = item.get("name") or item.get("path") or item.get("value") or ""
    return "%s=%s%s" % (item["target"], MARKS[item["source"]], source)


def identifiers(resource):
    """Identifiers of a resource that an action or collection makes."""
    return " ".join(assignment(item) for item in resource.get("identifiers", []))


def action(entry):
    """`Operation;parameters;Type;identifiers;path`."""
    request, resource = entry.get("request", {}), entry.get("resource", {})
    path = resource.get("path") or entry.get("path") or ""
    fields = [request.get("operation", ""), parameters(request), resource.get("type", "")]
    return ";".join(fields + [identifiers(resource), path]).rstrip(";")


def resource(model, shapes):
    """One resource as a dictionary of texts."""
    out = {"identifiers": " ".join(item["name"] for item in model.get("identifiers", []))}
    if "shape" in model:
        taken = {item.get("memberName") for item in model.get("identifiers", [])}
        names = [m for m in shapes[model["shape"]]["members"] if m not in taken]
        out["attributes"] = " ".join(names)
    for item in model.get("identifiers", []):
        if "memberName" in item:
            out["member_" + item["name"]] = item["memberName"]
    if "load" in model:
        out["load"] = action(model["load"])
    for group in ("actions", "batchActions", "has", "hasMany"):
        for name, entry in sorted(model.get(group, {}).items()):
            out.setdefault(group, {})[name] = action(entry)
    for name, entry in sorted(model.get("waiters", {}).items()):
        text = entry["waiterName"] + ";" + parameters(entry)
        out.setdefault("waiters", {})[name] = text
    return out


def resources_table():
    """The text of resources_table.py."""
    model = data("boto3", "resources-1")
    shapes = data("botocore", "service-2")["shapes"]
    found = {"ServiceResource": resource(model["service"], shapes)}
    for name, entry in sorted(model["resources"].items()):
        found[name] = resource(entry, shapes)
    text = (
        '"""S3\'s resources. Made by tests/tables.py; see `resource.py` for how to read it."""\n\n'
    )
    return text + "RESOURCES = " + literal(found, 0) + "\n"


def literal(value, depth):
    """A dictionary or text, as the formatter would have it."""
    pad = "    " * (depth + 1)
    if isinstance(value, dict):
        inner = "".join('%s"%s": %s,\n' % (pad, k, literal(v, depth + 1)) for k, v in value.items())
        return "{\n%s%s}" % (inner, "    " * depth)
    pad = "    " * depth
    if len(value) + len(pad) < 70:
        return '"%s"' % value
    lines = textwrap.wrap(value, 84 - len(pad), break_long_words=False, break_on_hyphens=False)
    body = "".join(
        '%s    "%s%s"\n' % (pad, line, "" if line is lines[-1] else " ") for line in lines
    )
    return "(\n%s%s)" % (body, pad)


def tables():
    """Every table: path and text."""
    out = {
        os.path.join(PACKAGE, "operations_table.py"): operations_table(),
        os.path.join(PACKAGE, "resources_table.py"): resources_table(),
    }
    return {**out, **synthetic()}


def synthetic():
    """The synthetic packages with the versions of the real ones: path and text."""
    out = {}
    for package in ("boto3", "botocore", "s3transfer"):
        path = os.path.join(os.path.dirname(PACKAGE), "synthetic", package, "__init__.py")
        with open(path) as file:
            text = file.read()
        version = '__version__ = "%s"' % importlib.metadata.version(package)
        out[path], count = re.subn(r'^__version__ = ".*"$', version, text, flags=re.M)
        assert count == 1, path
    return out


def main():
    """Compares or writes."""
    for path, text in tables().items():
        if "--write" in sys.argv:
            with open(path, "w") as file:
                file.write(text)
            continue
        with open(path) as file:
            if file.read() != text:
                sys.exit("%s differs: run guest/python/test --write" % path)


if __name__ == "__main__":
    main()
