"""s3transfer.exceptions."""

from unlade_guest.transfer_errors import *  # noqa: F403
