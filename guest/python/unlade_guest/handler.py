"""A handler by its name, and failures in the shape that Lambda gives them."""

import os
import sys


class Failure(Exception):
    """An invocation that did not succeed: the members of its answer."""

    def __init__(self, kind, message, trace=()):
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.trace = list(trace)

    def answer(self, request):
        """The error object for the caller."""
        return {
            "errorMessage": self.message,
            "errorType": self.kind,
            "requestId": request,
            "stackTrace": self.trace,
        }


def find(name):
    """The function `module.function`. Failure where there is none."""
    module_name, dot, function_name = name.rpartition(".")
    if not dot or not module_name:
        raise Failure(
            "Runtime.MalformedHandlerName",
            "Bad handler '%s': not enough values to unpack (expected 2, got 1)" % name,
        )
    root = os.environ.get("LAMBDA_TASK_ROOT") or os.getcwd()
    if root not in sys.path:
        sys.path.insert(0, root)
    module = _import(module_name)
    try:
        return getattr(module, function_name)
    except AttributeError:
        raise Failure(
            "Runtime.HandlerNotFound",
            "Handler '%s' missing on module '%s'" % (function_name, module_name),
        ) from None


def _import(name):
    dotted = name.replace("/", ".")
    try:
        __import__(dotted)
        return sys.modules[dotted]
    except ImportError as error:
        raise Failure(
            "Runtime.ImportModuleError",
            "Unable to import module '%s': %s" % (name, error),
            trace_of(error),
        ) from error
    except SyntaxError as error:
        raise Failure(
            "Runtime.UserCodeSyntaxError",
            "Syntax error in module '%s': %s" % (name, error),
            ['  File "%s" Line %s\n    %s\n' % (error.filename, error.lineno, error.text or "")],
        ) from error
    except Exception as error:
        raise failure_of(error) from error


def trace_of(error):
    """Lines of a traceback, without those of this package and of the import machinery."""
    from traceback import extract_tb, format_list

    here = os.path.dirname(os.path.abspath(__file__))
    frames = extract_tb(error.__traceback__)
    while frames and (frames[0].filename.startswith((here, "<frozen importlib"))):
        frames.pop(0)
    return format_list(frames)


def failure_of(error):
    """The failure that an exception of the function's is."""
    if isinstance(error, SystemExit):
        return Failure("Runtime.ExitError", "the function called exit(%s)" % (error.code,))
    return Failure(type(error).__name__, str(error), trace_of(error))
