"""`boto3.session.Session`: S3 is served here, every other service by the real boto3."""

import os
from _thread import allocate_lock

from . import endpoints, keys
from .config import Config

REGION_DEFAULT = "us-east-1"


class Session:
    """The counterpart of boto3's session. Given credentials are those of `keys.py`."""

    def __init__(
        self,
        aws_access_key_id=None,
        aws_secret_access_key=None,
        aws_session_token=None,
        region_name=None,
        botocore_session=None,
        profile_name=None,
        aws_account_id=None,
    ):
        self._region = region_name
        self._profile = profile_name
        self._events = SessionEvents()
        given = (aws_access_key_id, aws_secret_access_key, aws_session_token)
        self._given = keys.Given(given, profile_name, botocore_session, aws_account_id)
        self._other = None

    def __repr__(self):
        return "%s(region_name=%r)" % (type(self).__name__, self.region_name)

    @property
    def region_name(self):
        """The region that clients begin with."""
        return self._region or os.environ.get("AWS_DEFAULT_REGION")

    @property
    def profile_name(self):
        """The profile's name; nothing of its file is used (`endpoints.py` looks for endpoints)."""
        return self._profile or os.environ.get("AWS_PROFILE", "default")

    @property
    def events(self):
        """Hooks for this session's clients."""
        return self._events

    @property
    def available_profiles(self):
        """There are none in a function."""
        return []

    def get_credentials(self):
        """The function's own, of the real boto3; None where the host has them, and signs."""
        return self._real().get_credentials() if self._given.has_own() else None

    def get_available_services(self):
        """Names that `client` takes, of the real boto3."""
        return self._real().get_available_services()

    def get_available_resources(self):
        """Names that `resource` takes, of the real boto3."""
        return self._real().get_available_resources()

    def get_available_partitions(self):
        """Partitions, of the real boto3."""
        return self._real().get_available_partitions()

    def get_available_regions(self, service_name, partition_name="aws", allow_non_regional=False):
        """Regions of a service, of the real boto3."""
        return self._real().get_available_regions(service_name, partition_name, allow_non_regional)

    def client(
        self,
        service_name,
        region_name=None,
        api_version=None,
        use_ssl=True,
        verify=None,
        endpoint_url=None,
        aws_access_key_id=None,
        aws_secret_access_key=None,
        aws_session_token=None,
        config=None,
        aws_account_id=None,
    ):
        """A client of a service. HostError where it is one of another store (`endpoints.py`), or
        of S3 with keys of its own (`keys.py`)."""
        given = (aws_access_key_id, aws_secret_access_key, aws_session_token)
        endpoint = endpoints.check(service_name, endpoint_url, config, self._profile)
        if service_name != "s3":
            real = self._real()
            from .real import config as real_config

            return real.client(
                service_name,
                region_name=region_name,
                api_version=api_version,
                endpoint_url=endpoint_url,
                config=real_config(config),
                **keys.Given(given, None, None, aws_account_id).parameters(),
            )
        from .s3.client import client
        from .s3.meta import is_unsigned

        config = config or Config()
        if not is_unsigned(config.signature_version):
            keys.check_s3(given, self._given)
        region = region_name or config.region_name or self.region_name or REGION_DEFAULT
        merged = config.merge(Config(region_name=region))
        return client(merged, region, endpoint or _endpoint(region), self._events.of_s3())

    def resource(self, service_name, *args, **kwargs):
        """A resource of a service."""
        if service_name != "s3":
            real = self._real()
            from .real import config as real_config

            kwargs = {name: real_config(value) for name, value in kwargs.items()}
            return real.resource(service_name, *map(real_config, args), **kwargs)
        from .s3.resource import service

        return service(self.client(service_name, *args, **kwargs))

    def _real(self):
        """The real boto3's session with the same parameters."""
        if self._other is None:
            from .real import session

            given = self._given.parameters()
            region = self.region_name or REGION_DEFAULT
            if "botocore_session" in given and self._region is None:
                region = given["botocore_session"].get_config_variable("region") or region
            self._other = session(region, given)
            self._events.forward(self._other.events)
        return self._other


class SessionEvents:
    """Hooks of a session: S3's clients hear of them here, others' by the real boto3's session."""

    def __init__(self):
        from .s3.meta import Events

        self._s3 = Events()
        self._registered = []
        self._real = None

    def of_s3(self):
        """The hooks of a client of S3."""
        return self._s3.copy()

    def forward(self, real):
        """Registers at the events of a real session what is and will be registered here."""
        self._real = real
        for name, given in self._registered:
            getattr(real, name)(*given)

    def register(self, event_name, handler, unique_id=None, unique_id_uses_count=False):
        """Calls `handler` with what botocore gives it, for clients that are made later."""
        self._do("register", event_name, handler, unique_id, unique_id_uses_count)

    def register_first(self, event_name, handler, unique_id=None, unique_id_uses_count=False):
        """The same, before others."""
        self._do("register_first", event_name, handler, unique_id, unique_id_uses_count)

    def register_last(self, event_name, handler, unique_id=None, unique_id_uses_count=False):
        """The same, after others."""
        self._do("register_last", event_name, handler, unique_id, unique_id_uses_count)

    def unregister(self, event_name, handler=None, unique_id=None, unique_id_uses_count=False):
        """Takes a hook away."""
        self._do("unregister", event_name, handler, unique_id, unique_id_uses_count)

    def _do(self, name, *given):
        service = given[0].split(".")[1:2]
        if service in ([], ["s3"], ["*"]):
            getattr(self._s3, name)(*given)
        if service != ["s3"]:
            self._registered.append((name, given))
            if self._real is not None:
                getattr(self._real, name)(*given)

    def emit(self, event_name, **kwargs):
        """Calls the hooks of an event of S3; what each of them said."""
        return self._s3.emit(event_name, **kwargs)


def _endpoint(region):
    if region == REGION_DEFAULT:
        return "https://s3.amazonaws.com"
    return "https://s3.%s.amazonaws.com" % region


Session.__module__ = "boto3.session"


class _Default:
    """The session of `boto3.client`."""

    session = None
    lock = allocate_lock()


def setup_default_session(**kwargs):
    """Makes the default session anew."""
    _Default.session = Session(**kwargs)
    return _Default.session


def default_session():
    """The default session, made when it is first needed."""
    with _Default.lock:
        if _Default.session is None:
            _Default.session = Session()
        return _Default.session


def default_client(*args, **kwargs):
    """`boto3.client`."""
    return default_session().client(*args, **kwargs)


def default_resource(*args, **kwargs):
    """`boto3.resource`."""
    return default_session().resource(*args, **kwargs)
