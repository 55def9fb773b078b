"""boto3.session."""

from unlade_guest.session import Session

__all__ = ["Session"]
