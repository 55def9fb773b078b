"""boto3's own exceptions."""

from .errors import named

MODULE = "boto3.exceptions"


def _make(name, bases=None, **members):
    return type(name, bases or (Boto3Error,), dict(members, __module__=MODULE))


class Boto3Error(Exception):
    """The base of them."""


Boto3Error.__module__ = MODULE


def _last(self, last_exception, msg="Max Retries Exceeded"):
    Boto3Error.__init__(self, msg)
    self.last_exception = last_exception


def _unknown_resource(self, service_name, available_services, has_low_level_client):
    text = "The '%s' resource does not exist.\nThe available resources are:\n   - %s\n" % (
        service_name,
        "\n   - ".join(available_services),
    )
    if has_low_level_client:
        text += "\nConsider using a boto3.client('%s') instead of a resource for '%s'" % (
            service_name,
            service_name,
        )
    Boto3Error.__init__(self, text)


def _unknown_version(self, service_name, bad_api_version, available_api_versions):
    text = "The '%s' resource does not support an API version of: %s\nValid API versions are: %s"
    Boto3Error.__init__(self, text % (service_name, bad_api_version, available_api_versions))


def _operand(self, operation, value):
    text = (
        "%s operation cannot be applied to value %s of type %s directly. Must use AttributeBase "
        "object methods (i.e. Attr().eq()). to generate ConditionBase instances first."
    )
    Boto3Error.__init__(self, text % (operation, value, type(value)))


def _condition(self, value):
    text = (
        "Expecting a ConditionBase object. Got %s of type %s. Use AttributeBase object methods "
        "(i.e. Attr().eq()). to generate ConditionBase instances."
    )
    Boto3Error.__init__(self, text % (value, type(value)))


_DATA = (Boto3Error, named("DataNotFoundError"))
ResourceLoadException = _make("ResourceLoadException")
NoVersionFound = _make("NoVersionFound")
UnknownAPIVersionError = _make("UnknownAPIVersionError", _DATA, __init__=_unknown_version)
ResourceNotExistsError = _make("ResourceNotExistsError", _DATA, __init__=_unknown_resource)
RetriesExceededError = _make("RetriesExceededError", __init__=_last)
S3TransferFailedError = _make("S3TransferFailedError")
S3UploadFailedError = _make("S3UploadFailedError")
DynamoDBOperationNotSupportedError = _make("DynamoDBOperationNotSupportedError", __init__=_operand)
DynanmoDBOperationNotSupportedError = DynamoDBOperationNotSupportedError
DynamoDBNeedsConditionError = _make("DynamoDBNeedsConditionError", __init__=_condition)
DynamoDBNeedsKeyConditionError = _make("DynamoDBNeedsKeyConditionError")
PythonDeprecationWarning = _make("PythonDeprecationWarning", (Warning,))
InvalidCrtTransferConfigError = _make("InvalidCrtTransferConfigError")
