"""The import check of a handler, invoked before its function is served."""

from .handler import Failure, find


def handler(event, context):
    """Imports the handler that the event names; the failure as an invocation would answer it."""
    try:
        if not callable(find(event["handler"])):
            raise Failure("Runtime.HandlerNotFound", "%s cannot be called" % event["handler"])
    except Failure as failure:
        return failure.answer(context.aws_request_id)
    return None
