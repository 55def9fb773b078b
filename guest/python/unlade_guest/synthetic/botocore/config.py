"""botocore.config."""

from unlade_guest.config import Config

__all__ = ["Config"]
