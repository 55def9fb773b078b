"""boto3.exceptions."""

from unlade_guest.boto_errors import *  # noqa: F403
