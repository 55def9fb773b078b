"""Presigned URLs and forms: asked of the host, which has the credentials."""

from ..calls import perform
from ..descriptors import DONE
from ..errors import UnknownClientMethodError
from . import customise, shape, validate
from .client import exception_of, response_of
from .meta import is_unsigned


def url(client, method, parameters, expires_in, http_method):
    """A presigned URL for an operation."""
    operation = shape.METHODS.get(method)
    if operation is None:
        raise UnknownClientMethodError(method_name=method)
    parameters = dict(parameters or {})
    expected = shape.operation(operation)
    customise.before_check(operation, parameters)
    validate.check(parameters, expected)
    asked = {
        "Operation": operation,
        "Parameters": customise.plain(parameters, expected),
        "ExpiresIn": expires_in,
    }
    if http_method is not None:
        asked["HttpMethod"] = http_method
    return _ask(client, "GeneratePresignedUrl", asked)["Url"]


def post(client, bucket, key, fields, conditions, expires_in):
    """A presigned form."""
    asked = {"Bucket": bucket, "Key": key, "ExpiresIn": expires_in}
    if fields is not None:
        asked["Fields"] = fields
    if conditions is not None:
        asked["Conditions"] = conditions
    said = _ask(client, "GeneratePresignedPost", asked)
    return {"url": said["url"], "fields": said["fields"]}


def _ask(client, operation, asked):
    version = client.meta.config.signature_version
    if version is not None:
        # A URL without a signature is refused by the host, as one of any other version is.
        asked["SignatureVersion"] = "unsigned" if is_unsigned(version) else version
    answer = perform("s3", operation, asked, region=client.meta.region_name)
    if answer.status != DONE:
        raise exception_of(response_of(answer), operation)
    return answer.said["result"]
