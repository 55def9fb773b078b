"""botocore.client."""

from unlade_guest.config import Config
from unlade_guest.errors import ClientError
from unlade_guest.s3.client import BaseClient

__all__ = ["BaseClient", "ClientError", "Config"]
