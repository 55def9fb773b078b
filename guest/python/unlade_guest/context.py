"""The context object of a handler, and what Lambda gives in the environment."""

import os
from time import time

from .text import loads


class Client:
    """The application of a caller; an attribute is None if the caller does not tell it."""

    def __init__(self, told):
        told = told if isinstance(told, dict) else {}
        self.installation_id = told.get("installation_id")
        self.app_title = told.get("app_title")
        self.app_version_name = told.get("app_version_name")
        self.app_version_code = told.get("app_version_code")
        self.app_package_name = told.get("app_package_name")


class ClientContext:
    """Data that the caller of an invocation gives beside the event."""

    def __init__(self, told):
        self.client = Client(told["client"]) if told.get("client") is not None else None
        self.custom = told.get("custom")
        self.env = told.get("env")


class Context:
    """The context object of an invocation."""

    identity = None

    def __init__(self, head):
        told = head.get("client_context")
        self.client_context = None if told is None else ClientContext(loads(told))
        name = head.get("function", "function")
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION", "us-east-1")
        self.aws_request_id = head["id"]
        self.function_name = name
        self.function_version = os.environ.get("AWS_LAMBDA_FUNCTION_VERSION", "$LATEST")
        self.memory_limit_in_mb = str(head.get("memory_mib", 128))
        self.invoked_function_arn = head.get(
            "arn", "arn:aws:lambda:%s:000000000000:function:%s" % (region, name)
        )
        self.log_group_name = os.environ.get("AWS_LAMBDA_LOG_GROUP_NAME", "/aws/lambda/" + name)
        self.log_stream_name = os.environ.get(
            "AWS_LAMBDA_LOG_STREAM_NAME", "instance-%d" % os.getpid()
        )
        self._deadline_ms = head.get("deadline_ms", 0)

    def get_remaining_time_in_millis(self):
        """Milliseconds until the deadline, at least 0."""
        return max(0, int(self._deadline_ms - time() * 1000))

    def log(self, message):
        """Writes to the log."""
        import sys

        sys.stdout.write(str(message))

    def __repr__(self):
        return "LambdaContext([aws_request_id=%s,function_name=%s])" % (
            self.aws_request_id,
            self.function_name,
        )


def environment(head):
    """Variables that functions of Lambda look at, where nobody has set them."""
    name = head.get("function", "function")
    for variable, value in (
        ("AWS_LAMBDA_FUNCTION_NAME", name),
        ("AWS_LAMBDA_FUNCTION_VERSION", "$LATEST"),
        ("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", str(head.get("memory_mib", 128))),
        ("AWS_LAMBDA_LOG_GROUP_NAME", "/aws/lambda/" + name),
        ("AWS_LAMBDA_LOG_STREAM_NAME", "instance-%d" % os.getpid()),
        ("AWS_LAMBDA_INITIALIZATION_TYPE", "on-demand"),
        ("AWS_EXECUTION_ENV", "AWS_Lambda_python3"),
        ("_HANDLER", head.get("handler", "")),
        ("LAMBDA_TASK_ROOT", os.getcwd()),
    ):
        os.environ.setdefault(variable, value)
