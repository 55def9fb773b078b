"""Which store a client may be of: the host carries calls to the function's tenant's store only.

A client that a function makes for another store would be answered by this one, silently. So it is
refused when it is made. Endpoints of AWS itself are no other store: they are what a client has that
names none, and stand for the tenant's store here.
"""

import os

from .errors import host_error

# The host says here where the tenant's store is.
OWN = "UNLADE_STORE_ENDPOINT"
AWS = (
    ".amazonaws.com",
    ".amazonaws.com.cn",
    ".amazonaws.eu",
    ".api.amazonwebservices.com.cn",
    ".api.amazonwebservices.eu",
    ".api.aws",
    ".c2s.ic.gov",
    ".cloud.adc-e.uk",
    ".csp.hci.ic.gov",
    ".on.aws",
    ".sc2s.sgov.gov",
)
PORTS = {"http": 80, "https": 443}
ADVICE = (
    "the host carries calls to the store of the function's tenant only, and would send those of "
    "this client there. Leave the endpoint out to use that store, or deploy the function with "
    '`mode = "stock"` in function.toml: then it has the real boto3 and a network'
)


def check(service, endpoint_url, config, profile):
    """Refuses a client of another store. What it has to say of its endpoint; None: nothing."""
    given, where = _chosen(service, endpoint_url, config, profile)
    if given is not None and not _is_own(given):
        raise _refusal(service, given, where)
    return given


def check_made(service, client):
    """Refuses a client of the real boto3 by what it has found: an argument, a variable, a file."""
    url = client.meta.endpoint_url
    if not _is_own(url):
        raise _refusal(service, url, "an argument, a variable or a profile")


def _refusal(service, url, where):
    message = "the endpoint %s of a client of %s (%s) is another store's: %s"
    return host_error("ForeignEndpoint", message % (url, service, where, ADVICE), "CreateClient")


def _chosen(service, endpoint_url, config, profile):
    """The endpoint that stock boto3 would use, and where it is said; in its order."""
    if endpoint_url is not None:
        return endpoint_url, "endpoint_url"
    if _ignores(config):
        return None, None
    for name in ("AWS_ENDPOINT_URL_" + service.replace("-", "_").upper(), "AWS_ENDPOINT_URL"):
        if os.environ.get(name):
            return os.environ[name], name
    path = os.path.expanduser(os.environ.get("AWS_CONFIG_FILE", "~/.aws/config"))
    if os.path.isfile(path):
        names = (os.environ.get(name) for name in ("AWS_DEFAULT_PROFILE", "AWS_PROFILE"))
        profile = profile or next(filter(None, names), "default")
        found = _of_file(path, service, profile)
        if found is not None:
            return found, path
    return None, None


def _ignores(config):
    said = getattr(config, "ignore_configured_endpoint_urls", None)
    if said is None:
        said = os.environ.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "").lower() == "true"
    return said


def _of_file(path, service, profile):
    """A profile's endpoint in a configuration file of AWS's: that of the service, else of all."""
    from configparser import Error, RawConfigParser

    parser = RawConfigParser(default_section=None, strict=False)
    try:
        with open(path, encoding="utf-8") as file:
            parser.read_file(file)
    except (OSError, UnicodeDecodeError, Error):
        return None
    own = next(
        (
            dict(parser.items(name))
            for name in parser.sections()
            if name.split() in ([profile], ["profile", profile])
        ),
        {},
    )
    if own.get("ignore_configured_endpoint_urls", "").lower() == "true":
        return None
    services = "services " + own.get("services", "")
    if parser.has_section(services):
        for line in parser.get(services, service.replace("-", "_"), fallback="").splitlines():
            key, _, value = line.partition("=")
            if key.strip() == "endpoint_url":
                return value.strip()
    return own.get("endpoint_url")


def _is_own(url):
    """True if an endpoint is the tenant's store, or AWS's."""
    if not isinstance(url, str):
        return False
    found = _parts(url)
    if found is None:
        return False
    if any(("." + found[1]).endswith(name) for name in AWS):
        return True
    own = os.environ.get(OWN)
    return own is not None and found == _parts(own)


def _parts(url):
    """Scheme, host, port and path of an endpoint; None where it is none."""
    from urllib.parse import urlsplit

    try:
        said = urlsplit(url)
        port = said.port or PORTS.get(said.scheme)
    except ValueError:
        return None
    if not said.hostname:
        return None
    return said.scheme, said.hostname, port, said.path.rstrip("/")
