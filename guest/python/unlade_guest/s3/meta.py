"""`client.meta`, the part of the service's model that functions look at, and events."""

from . import shape


class ServiceModel:
    """The names in S3's model."""

    service_name = "s3"
    service_id = "S3"
    signing_name = "s3"
    endpoint_prefix = "s3"
    api_version = "2006-03-01"
    protocol = "rest-xml"

    @property
    def operation_names(self):
        """Every operation."""
        return list(shape.METHODS.values())

    def operation_model(self, name):
        """An operation by its name."""
        return OperationModel(self, name)


class OperationModel:
    """An operation's name, and the service it is of."""

    def __init__(self, service_model, name):
        shape.operation(name)
        self.service_model = service_model
        self.name = self.wire_name = name


def is_unsigned(version):
    """True if a signature version is `botocore.UNSIGNED`, the synthetic or the real one."""
    return type(version).__name__ == "UNSIGNED"


class ClientMeta:
    """The `meta` attribute of a client."""

    def __init__(self, config, region, endpoint, events):
        self.config = config
        self.region_name = region
        self.endpoint_url = endpoint
        self.events = events
        self.partition = "aws"
        self.service_model = ServiceModel()

    def unsigned(self, operation):
        """True if the host must send an operation without a signature."""
        if is_unsigned(self.config.signature_version):
            return True
        if not self.events.registered:
            return False
        said = self.events.emit(
            "choose-signer.s3." + operation,
            signing_name="s3",
            region_name=self.region_name,
            signature_version=self.config.signature_version,
            context={},
        )
        return any(is_unsigned(version) for _, version in said)

    @property
    def method_to_api_mapping(self):
        """Operations by the names of their methods."""
        return dict(shape.METHODS)


class Events:
    """Hooks of functions: before parameters are checked, after a response has come, and whether a
    request is signed at all.

    Events further down (a request being built, signed or sent) happen in the host: what registers
    for them is refused, as it would never hear of anything.
    """

    HEARD = (
        "provide-client-params",
        "before-parameter-build",
        "choose-signer",
        "after-call",
        "after-call-error",
    )

    def __init__(self, registered=()):
        self.registered = list(registered)

    def copy(self):
        """Hooks of a session are those of its clients."""
        return Events(self.registered)

    def register(self, event_name, handler, unique_id=None, unique_id_uses_count=False):
        """Calls `handler` with what botocore gives it, where the event exists here."""
        kind = event_name.split(".")[0]
        if kind not in self.HEARD and kind not in ("*", "creating-client-class"):
            raise NotImplementedError(
                "the event %r happens in the host: use one of %s"
                % (event_name, ", ".join(self.HEARD))
            )
        if unique_id is None or not any(found[2] == unique_id for found in self.registered):
            self.registered.append((event_name, handler, unique_id))

    register_first = register_last = register

    def unregister(self, event_name, handler=None, unique_id=None, unique_id_uses_count=False):
        """Takes a hook away."""
        self.registered = [
            found
            for found in self.registered
            if found[0] != event_name
            or (found[1] != handler if unique_id is None else found[2] != unique_id)
        ]

    def emit(self, event_name, **kwargs):
        """Calls the hooks of an event; what each of them said."""
        parts = event_name.split(".")
        out = []
        for pattern, handler, _ in list(self.registered):
            wanted = pattern.split(".")
            if all(a in ("*", b) for a, b in zip(wanted, parts)) and len(wanted) <= len(parts):
                out.append((handler, handler(event_name=event_name, **kwargs)))
        return out

    def before(self, operation, parameters):
        """Parameters as hooks leave them."""
        model = ServiceModel().operation_model(operation)
        context = {}
        for kind in ("provide-client-params", "before-parameter-build"):
            found = self.emit(
                "%s.s3.%s" % (kind, operation), params=parameters, model=model, context=context
            )
            for _, given in found:
                if given is not None and kind == "provide-client-params":
                    parameters = given
        return parameters

    def after(self, operation, result):
        """Tells hooks of a response."""
        model = ServiceModel().operation_model(operation)
        self.emit(
            "after-call.s3." + operation, http_response=None, parsed=result, model=model, context={}
        )
