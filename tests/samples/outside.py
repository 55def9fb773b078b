"""Runs a handler as Lambda's runtime does, with stock boto3 and nothing of Unlade.

python outside.py MODULE.FUNCTION: events come as a JSON list on standard input; the results go as
one to the descriptor 3.
"""

import importlib
import json
import logging
import os
import sys
import time

FORMAT = "[%(levelname)s]\t%(asctime)s.%(msecs)dZ\t%(aws_request_id)s\t%(message)s\n"


class Context:
    """The context of an invocation: a handler gets it beside its event."""

    def __init__(self, number):
        name = os.environ["AWS_LAMBDA_FUNCTION_NAME"]
        self.aws_request_id = "00000000-0000-4000-8000-%012d" % number
        self.function_name = self.log_group_name = name
        self.function_version = "1"
        self.memory_limit_in_mb = "128"
        self.invoked_function_arn = "arn:aws:lambda:us-east-1:000000000000:function:" + name

    def get_remaining_time_in_millis(self):
        """Milliseconds until a deadline that is far."""
        return 30000


class Handler(logging.StreamHandler):
    """Writes lines as Lambda does."""

    terminator = ""
    current = None

    def emit(self, record):
        record.aws_request_id = self.current.aws_request_id
        super().emit(record)


def run(handler, event, context, log):
    """The result of one invocation."""
    log.current = context
    try:
        return {"answer": json.loads(json.dumps(handler(event, context)))}
    except Exception as error:
        return {"error": {"errorType": type(error).__name__, "errorMessage": str(error)}}


def main():
    """The command."""
    log = Handler(sys.stdout)
    formatter = logging.Formatter(FORMAT, "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    log.setFormatter(formatter)
    module, _, name = sys.argv[1].rpartition(".")
    sys.path.insert(0, os.getcwd())
    handler = getattr(importlib.import_module(module), name)
    logging.getLogger().addHandler(log)
    events = json.load(sys.stdin)
    results = [run(handler, event, Context(n), log) for n, event in enumerate(events, 1)]
    sys.stdout.flush()
    with os.fdopen(3, "w") as out:
        json.dump(results, out)


if __name__ == "__main__":
    main()
