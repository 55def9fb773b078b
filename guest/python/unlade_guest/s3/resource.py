"""`boto3.resource("s3")`: objects for buckets and keys, made of their table.

An action is `Operation;parameters;Type;identifiers;path`. Parameters and identifiers are
`Target=source`, where a source is an identifier's name, `@` a member of the data, `$` a parameter
of the request, `#` a path in the response, `?` given by the caller, `'` a constant.
"""

from ..boto_errors import ResourceLoadException
from ..errors import ClientError
from .collection import manager_class
from .query import compile
from .resources_table import RESOURCES
from .shape import METHODS, snake

_classes = {}
_method_names = {operation: method for method, operation in METHODS.items()}


class ResourceMeta:
    """`resource.meta`."""

    def __init__(self, service_name, identifiers=(), client=None, data=None, resource_model=None):
        self.service_name = service_name
        self.identifiers = list(identifiers)
        self.client = client
        self.data = data
        self.resource_model = resource_model

    def __repr__(self):
        return "ResourceMeta('%s', identifiers=%s)" % (self.service_name, self.identifiers)

    def copy(self):
        """Another one with the same in it."""
        return ResourceMeta(
            self.service_name, self.identifiers, self.client, self.data, self.resource_model
        )


class ServiceResource:
    """The base of resources: identifiers, a client, and data, loaded when they are asked for."""

    meta = None

    def __init__(self, *args, **kwargs):
        self.meta = self.meta.copy()
        self.meta.client = kwargs.pop("client", None)
        if self.meta.client is None:
            from ..session import default_client

            self.meta.client = default_client("s3")
        for name, value in zip(self.meta.identifiers, args):
            setattr(self, "_" + name, value)
        for name, value in kwargs.items():
            if name not in self.meta.identifiers:
                raise ValueError("Unknown keyword argument: %s" % name)
            setattr(self, "_" + name, value)
        for name in self.meta.identifiers:
            if getattr(self, name) is None:
                raise ValueError("Required parameter %s not set" % name)

    def __repr__(self):
        inner = ("%s=%r" % (name, getattr(self, name)) for name in self.meta.identifiers)
        return "%s(%s)" % (self.__class__.__name__, ", ".join(inner))

    def _identity(self):
        return (type(self).__name__,) + tuple(getattr(self, n) for n in self.meta.identifiers)

    def __eq__(self, other):
        if type(other).__name__ != type(self).__name__:
            return False
        return self._identity() == other._identity()

    def __hash__(self):
        return hash(self._identity())


ServiceResource.__module__ = "boto3.resources.base"


def service(client):
    """The resource of the service."""
    return resource_class("ServiceResource")(client=client)


def resource_class(kind):
    """The class of a kind of resource, made once."""
    found = _classes.get(kind)
    if found is None:
        found = _classes[kind] = _make(kind, RESOURCES[kind])
    return found


def _make(kind, table):
    identifiers = [snake(name) for name in table["identifiers"].split()]
    members = {
        "__module__": "boto3.resources.factory",
        "meta": ResourceMeta("s3", identifiers),
    }
    for name in table.get("attributes", "").split():
        if snake(name) not in identifiers:
            members[snake(name)] = _attribute(name)
    for name in identifiers:
        members[name] = property(lambda self, name=name: getattr(self, "_" + name, None))
        alias = table.get("member_" + name)
        if alias:
            members[snake(alias)] = members[name]
    for name, text in table.get("hasMany", {}).items():
        members[snake(name)] = _collection(kind, snake(name), text)
    has = _has(kind, table)
    for name, text in has.items():
        if "=@" in text:
            members[snake(name)] = _reference(text)
        else:
            members[name] = _subresource(text)
    names = sorted(n for n, text in has.items() if "=@" not in text)
    members["get_available_subresources"] = lambda self: list(names)
    if "load" in table:
        members["load"] = members["reload"] = _load(table["load"])
    for name, text in table.get("actions", {}).items():
        members[snake(name)] = _action(snake(name), text)
    for name, text in table.get("waiters", {}).items():
        members["wait_until_" + snake(name)] = _waiter(text)
    members.update(ADDED.get(kind, {}))
    return type("s3." + kind, (ServiceResource,), members)


def _has(kind, table):
    """Resources that one is the way to; the service is the way to every kind."""
    if kind != "ServiceResource":
        return table.get("has", {})
    return {
        name: ";;%s;%s" % (name, " ".join(n + "=?" for n in other["identifiers"].split()))
        for name, other in RESOURCES.items()
        if name != kind
    }


def _attribute(name):
    def get(self):
        if self.meta.data is None:
            if not hasattr(self, "load"):
                raise ResourceLoadException("%s has no load method" % type(self).__name__)
            self.load()
        return self.meta.data.get(name)

    return property(get)


class Action:
    """An action's text, taken apart."""

    def __init__(self, text):
        parts = (text + ";;;;").split(";")
        self.operation, parameters, self.kind, identifiers, self.path = parts[:5]
        self.parameters = [word.split("=", 1) for word in parameters.split()]
        self.identifiers = [word.split("=", 1) for word in identifiers.split()]

    def method(self, client):
        """The client's method."""
        return getattr(client, _method_names[self.operation])


def value_of(resource, source):
    """The value of a parameter, from its source."""
    if source[0] == "'":
        return source[1:]
    if source[0] == "@":
        if resource.meta.data is None and hasattr(resource, "load"):
            resource.load()
        return compile(source[1:]).search(resource.meta.data)
    return getattr(resource, snake(source))


def place(parameters, target, value, index=None):
    """Puts a value where `Delete.Objects[].Key` says."""
    steps = target.replace("[*]", "[]").split(".")
    for step in steps[:-1]:
        if step.endswith("[]"):
            found = parameters.setdefault(step[:-2], [])
            at = 0 if index is None else index
            while len(found) <= at:
                found.append({})
            parameters = found[at]
        else:
            parameters = parameters.setdefault(step, {})
    last = steps[-1]
    if last.endswith("[]"):
        parameters.setdefault(last[:-2], []).append(value)
    else:
        parameters[last] = value


def parameters_of(resource, action, into=None, index=None):
    """The parameters that a resource gives to an action."""
    parameters = {} if into is None else into
    for target, source in action.parameters:
        place(parameters, target, value_of(resource, source), index)
    return parameters


def made(parent, action, parameters, response):
    """The resource, or list of them, that an answer stands for."""
    kind = resource_class(action.kind)
    identifiers = {}
    for target, source in action.identifiers:
        if source[0] == "#":
            value = compile(source[1:]).search(response)
        elif source[0] == "$":
            value = compile(source[1:]).search(parameters)
        elif source[0] == "?":
            continue
        else:
            value = value_of(parent, source)
        identifiers[snake(target)] = value
    data = compile(action.path).search(response) if action.path else None
    lists = [value for value in identifiers.values() if isinstance(value, list)]
    if not lists:
        if any(value is None for value in identifiers.values()):
            return [] if action.path.endswith("[]") else None
        one = kind(client=parent.meta.client, **identifiers)
        one.meta.data = data
        return one
    out = []
    for at in range(len(lists[0])):
        names = {n: v[at] if isinstance(v, list) else v for n, v in identifiers.items()}
        one = kind(client=parent.meta.client, **names)
        one.meta.data = data[at] if data else None
        out.append(one)
    return out


def _perform(self, action, args, kwargs):
    parameters = parameters_of(self, action)
    parameters.update(kwargs)
    response = action.method(self.meta.client)(*args, **parameters)
    if action.kind:
        return made(self, action, parameters, response)
    if action.path and action.path not in ("@", "$"):
        return compile(action.path).search(response)
    return response


def _action(name, text):
    action = Action(text)

    def do(self, *args, **kwargs):
        response = _perform(self, action, args, kwargs)
        if hasattr(self, "load"):
            self.meta.data = None
        return response

    do.__name__ = name
    return do


def _load(text):
    action = Action(text)

    def load(self, *args, **kwargs):
        self.meta.data = _perform(self, action, args, kwargs)

    return load


def _reference(text):
    action = Action(text)

    def get(self):
        if self.meta.data is None and hasattr(self, "load"):
            self.load()
        return made(self, action, {}, self.meta.data)

    return property(get)


def _subresource(text):
    action = Action(text)

    def create(self, *args, **kwargs):
        first = [value_of(self, s) for _, s in action.identifiers if s[0] != "?"]
        return resource_class(action.kind)(*first, *args, client=self.meta.client, **kwargs)

    return create


def _waiter(text):
    action = Action(text)

    def wait(self, *args, **kwargs):
        parameters = parameters_of(self, action)
        parameters.update(kwargs)
        self.meta.client.get_waiter(snake(action.operation)).wait(**parameters)

    return wait


def _collection(kind, name, text):
    action = Action(text)

    def get(self):
        return manager_class(kind, name, action)(action, self)

    return property(get)


def _bucket_load(self, *args, **kwargs):
    """A bucket's data are in the list of buckets; without the right to it there are none."""
    self.meta.data = {}
    try:
        for found in self.meta.client.list_buckets()["Buckets"]:
            if found["Name"] == self.name:
                self.meta.data = found
                break
    except ClientError as error:
        if error.response.get("Error", {}).get("Code") != "AccessDenied":
            raise


def _summary_load(self, *args, **kwargs):
    found = self.meta.client.head_object(Bucket=self.bucket_name, Key=self.key)
    if "ContentLength" in found:
        found["Size"] = found.pop("ContentLength")
    self.meta.data = found


def _where(self, rest):
    """Bucket and key for a transfer: an object has both, a bucket's caller gives the key."""
    if hasattr(self, "bucket_name"):
        return dict(rest, Bucket=self.bucket_name, Key=self.key)
    return dict(rest, Bucket=self.name)


def _transfer(method, names):
    def bucket(self, *args, **kwargs):
        rest = dict(zip(names, args), **kwargs)
        return getattr(self.meta.client, method)(**_where(self, rest))

    def object_(self, *args, **kwargs):
        left = [name for name in names if name != "Key"]
        rest = dict(zip(left, args), **kwargs)
        return getattr(self.meta.client, method)(**_where(self, rest))

    bucket.__name__ = object_.__name__ = method
    return bucket, object_


_OPTIONS = ["ExtraArgs", "Callback", "Config"]
_TRANSFERS = {
    "upload_file": ["Filename", "Key"] + _OPTIONS,
    "download_file": ["Key", "Filename"] + _OPTIONS,
    "upload_fileobj": ["Fileobj", "Key"] + _OPTIONS,
    "download_fileobj": ["Key", "Fileobj"] + _OPTIONS,
    "copy": ["CopySource", "Key", "ExtraArgs", "Callback", "SourceClient", "Config"],
}
_BOTH = {method: _transfer(method, names) for method, names in _TRANSFERS.items()}
ADDED = {
    "Bucket": dict({method: both[0] for method, both in _BOTH.items()}, load=_bucket_load),
    "Object": {method: both[1] for method, both in _BOTH.items()},
    "ObjectSummary": {"load": _summary_load},
}
