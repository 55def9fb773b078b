"""Keys that a function's code gives to its clients: they are used, or refused, never dropped.

The host signs a request of a service other than S3 with the keys of its client (`cut.py`). Calls of
S3 are the host's, with the rights of the function's role, so a client of S3 with other keys is
refused when it is made. With `keys = "ignore"` in function.toml the code's keys are not used at all.
"""

import os

# The host says here what function.toml does; absent: refuse.
CHOICE = "UNLADE_KEYS"
NAMES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
# Options of a profile by which botocore finds keys.
OF_PROFILE = (
    "aws_access_key_id",
    "credential_process",
    "role_arn",
    "sso_session",
    "sso_start_url",
    "web_identity_token_file",
)
FILES = (
    ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
    ("AWS_CONFIG_FILE", "~/.aws/config"),
)
ADVICE = (
    "a client of s3 has keys of its own (%s), and the host carries calls of S3 with the rights of the "
    "function's role only. Leave the keys out to use these; or, in function.toml, `keys = "
    '"ignore"`: then keys in code are not used; or `mode = "stock"`: then it has the real boto3 '
    "and a network"
)


class _State:
    """The environment with which the function was started; code may change it."""

    keys = (None, None, None)
    ignored = False


def note():
    """Remembers the environment, before the function's code runs."""
    _State.keys = _of_environment()
    _State.ignored = os.environ.get(CHOICE) == "ignore"


def _of_environment():
    return tuple(os.environ.get(name) or None for name in NAMES)


def own(access_key_id, secret_access_key, session_token):
    """True for keys of the function's own: those of its environment are what each client has."""
    given = tuple(value or None for value in (access_key_id, secret_access_key, session_token))
    return any(given) and given != _State.keys and not _State.ignored


def of_credentials(credentials):
    """The keys of an object of botocore's, as a request to the host has them; None: the host's."""
    if credentials is None or _State.ignored:
        return None
    frozen = credentials.get_frozen_credentials()
    if not own(frozen.access_key, frozen.secret_key, frozen.token):
        return None
    found = {
        "access_key_id": frozen.access_key or "",
        "secret_access_key": frozen.secret_key or "",
    }
    if frozen.token:
        found["session_token"] = frozen.token
    return found


def check_s3(arguments, session):
    """Refuses a client of S3 by the first keys that stock boto3 would find: the client's arguments
    and its session's `Given`."""
    found = None if _State.ignored else _found(arguments, session)
    if found is not None:
        raise _refusal(found)


def check_s3_made(credentials):
    """Refuses a client of S3 of the real boto3 by the credentials that it has found."""
    if credentials is None or _State.ignored:
        return
    method = getattr(credentials, "method", None)
    # Those that are fetched are not fetched for this: only the environment's are the host's.
    is_fetched = hasattr(credentials, "refresh_needed") and method != "env"
    if is_fetched or of_credentials(credentials) is not None:
        raise _refusal(method or "credentials")


def _refusal(where):
    from .errors import host_error

    return host_error("ForeignCredentials", ADVICE % where, "CreateClient")


def _found(arguments, session):
    """Where a client of S3 has keys of the function's own from; None where it has none."""
    for given, where in ((arguments, "its arguments"), (session.keys, "its session")):
        if any(given):
            return where if own(*given) else None
    if session.botocore is not None:
        check_s3_made(session.botocore.get_credentials())
        return None
    if session.profile is None:
        given = _of_environment()
        if any(given):
            return "the environment" if own(*given) else None
    return of_files(session.profile)


def of_files(profile):
    """The file of AWS's in which a profile has keys; None where there is none, or keys are ignored."""
    paths = [os.path.expanduser(os.environ.get(name, usual)) for name, usual in FILES]
    paths = [path for path in paths if os.path.isfile(path)]
    if not paths or _State.ignored:
        return None
    from configparser import Error, RawConfigParser

    names = (os.environ.get(name) for name in ("AWS_DEFAULT_PROFILE", "AWS_PROFILE"))
    profile = profile or next(filter(None, names), "default")
    for path in paths:
        parser = RawConfigParser(default_section=None, strict=False)
        try:
            parser.read(path, encoding="utf-8")
        except (UnicodeDecodeError, Error):
            continue
        for name in parser.sections():
            is_profile = name.split() in ([profile], ["profile", profile])
            if is_profile and any(parser.has_option(name, option) for option in OF_PROFILE):
                return path
    return None


class Given:
    """The keys, the profile and the session of botocore that a session was made with."""

    __slots__ = ("keys", "profile", "botocore", "account")

    def __init__(self, keys, profile, botocore, account):
        self.keys = keys
        self.profile = profile
        self.botocore = botocore
        self.account = account

    def parameters(self):
        """Those that the real boto3's session needs for them."""
        found = {}
        if not _State.ignored:
            names = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
            found.update((name, key) for name, key in zip(names, self.keys) if key)
            if found and self.account is not None:
                found["aws_account_id"] = self.account
        if self.botocore is not None:
            found["botocore_session"] = self.botocore
        if self.profile is not None and of_files(self.profile) is not None:
            found["profile_name"] = self.profile
        return found

    def has_own(self):
        """True if clients of other services have keys of the function's own."""
        given = self.keys if any(self.keys) else _of_environment()
        return own(*given) or self.botocore is not None or of_files(self.profile) is not None
