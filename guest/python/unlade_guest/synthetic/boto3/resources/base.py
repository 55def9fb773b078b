"""boto3.resources.base."""

from unlade_guest.s3.resource import ResourceMeta, ServiceResource

__all__ = ["ResourceMeta", "ServiceResource"]
