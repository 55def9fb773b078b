"""Collections: `bucket.objects.filter(Prefix=...)`, page by page."""

_managers = {}


def manager_class(kind, name, action):
    """The manager of a collection of a kind of resource, made once."""
    found = _managers.get((kind, name))
    if found is None:
        from .resources_table import RESOURCES

        stem = "s3." if kind == "ServiceResource" else "s3.%s." % kind
        members = {"__module__": "boto3.resources.collection"}
        for batch, text in RESOURCES[action.kind].get("batchActions", {}).items():
            members[batch.lower()] = _batch(text)
        collection = type(stem + name + "Collection", (ResourceCollection,), members)
        members["_collection"] = collection
        found = type(stem + name + "CollectionManager", (CollectionManager,), members)
        _managers[kind, name] = found
    return found


def _merged(first, second):
    """Parameters of two filters: the later ones win, lists grow."""
    out = dict(first)
    for name, value in second.items():
        if isinstance(value, dict) and isinstance(out.get(name), dict):
            out[name] = _merged(out[name], value)
        elif isinstance(value, list) and isinstance(out.get(name), list):
            out[name] = out[name] + value
        else:
            out[name] = value
    return out


class _Named:
    """How both show themselves."""

    _action = None
    _parent = None

    def __repr__(self):
        return "%s(%s, s3.%s)" % (type(self).__name__, self._parent, self._action.kind)


class ResourceCollection(_Named):
    """Resources that the service lists; calls are made while it is iterated."""

    def __init__(self, action, parent, **params):
        self._action = action
        self._parent = parent
        self._params = params

    def __iter__(self):
        for page in self.pages():
            yield from page

    def _with(self, **params):
        return type(self)(self._action, self._parent, **_merged(self._params, params))

    def all(self):
        """Everything."""
        return self._with()

    def filter(self, **kwargs):
        """The collection with these request parameters."""
        return self._with(**kwargs)

    def limit(self, count):
        """At most so many."""
        return self._with(limit=count)

    def page_size(self, count):
        """At most so many a call."""
        return self._with(page_size=count)

    def pages(self):
        """Lists of resources, one a call."""
        from .resource import made, parameters_of

        client = self._parent.meta.client
        given = dict(self._params)
        limit = given.pop("limit", None)
        size = given.pop("page_size", None)
        parameters = _merged(parameters_of(self._parent, self._action), given)
        method = self._action.method(client)
        if client.can_paginate(method.__name__):
            config = {"MaxItems": limit, "PageSize": size}
            paginator = client.get_paginator(method.__name__)
            pages = paginator.paginate(PaginationConfig=config, **parameters)
        else:
            pages = [method(**parameters)]
        count = 0
        for page in pages:
            items = made(self._parent, self._action, parameters, page) or []
            if limit is not None:
                items = items[: limit - count]
            count += len(items)
            yield items
            if limit is not None and count >= limit:
                return


class CollectionManager(_Named):
    """The attribute of a resource that creates collections."""

    _collection = ResourceCollection

    def __init__(self, action, parent):
        self._action = action
        self._parent = parent

    def iterator(self, **kwargs):
        """A collection with these parameters."""
        return self._collection(self._action, self._parent, **kwargs)

    def all(self):
        """Everything."""
        return self.iterator()

    def filter(self, **kwargs):
        """The collection with these request parameters."""
        return self.iterator(**kwargs)

    def limit(self, count):
        """At most so many."""
        return self.iterator(limit=count)

    def page_size(self, count):
        """At most so many a call."""
        return self.iterator(page_size=count)

    def pages(self):
        """Lists of resources, one a call."""
        return self.iterator().pages()


def _batch(text):
    """An action on every page of a collection; what it gave for each."""

    def do(self, *args, **kwargs):
        from .resource import Action, parameters_of

        action = Action(text)
        responses = []
        for page in self.pages():
            parameters = {}
            for index, resource in enumerate(page):
                parameters_of(resource, action, parameters, index)
            if not parameters:
                break
            parameters.update(kwargs)
            method = action.method(page[0].meta.client)
            responses.append(method(*args, **parameters))
        return responses

    return do
