"""botocore.response."""

from unlade_guest.body import StreamingBody

__all__ = ["StreamingBody"]
