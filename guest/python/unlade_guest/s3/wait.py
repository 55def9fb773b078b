"""Waiters: HEAD until the answer is the wanted one."""

from time import sleep

from ..errors import ClientError, WaiterError
from .shape import METHODS

DELAY_S = 5
ATTEMPTS_MAX = 20
EXISTS = {200: True, 404: False}
# Method, and what a status means: True is the end, False is to wait.
NAMES = {
    "bucket_exists": ("BucketExists", "head_bucket", {200: True, 301: True, 403: True, 404: False}),
    "bucket_not_exists": ("BucketNotExists", "head_bucket", {404: True}),
    "object_exists": ("ObjectExists", "head_object", EXISTS),
    "object_not_exists": ("ObjectNotExists", "head_object", {404: True}),
}


class Config:
    """`waiter.config`."""

    def __init__(self, operation):
        self.operation = operation
        self.delay = DELAY_S
        self.max_attempts = ATTEMPTS_MAX
        self.description = ""


class Waiter:
    """Waits for a state. `WaiterConfig={"Delay": seconds, "MaxAttempts": number}`."""

    def __init__(self, client, name):
        self.name, self._method, self._states = NAMES[name]
        self.config = Config(METHODS[self._method])
        self._client = client

    def wait(self, **kwargs):
        """Returns in the state; WaiterError where it does not come."""
        config = kwargs.pop("WaiterConfig", {})
        delay = config.get("Delay", self.config.delay)
        attempts = config.get("MaxAttempts", self.config.max_attempts)
        made = 0
        while True:
            response = self._look(kwargs)
            made += 1
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            state = self._states.get(status)
            if state:
                return
            if state is None and "Code" in response.get("Error", {}):
                error = response["Error"]
                reason = "An error occurred (%s): %s" % (
                    error.get("Code", "Unknown"),
                    error.get("Message", "Unknown"),
                )
                raise WaiterError(self.name, reason, response)
            if made >= attempts:
                reason = "Max attempts exceeded"
                if state is not None:
                    reason += ". Previously accepted state: Matched expected HTTP status code: "
                    reason += str(status)
                raise WaiterError(self.name, reason, response)
            sleep(delay)

    def _look(self, kwargs):
        try:
            return getattr(self._client, self._method)(**kwargs)
        except ClientError as error:
            return error.response


def waiter(client, name):
    """A waiter by its name. ValueError where there is none."""
    if name not in NAMES:
        raise ValueError("Waiter does not exist: %s" % name)
    kind = type("S3.Waiter." + NAMES[name][0], (Waiter,), {"__module__": "botocore.waiter"})
    return kind(client, name)
