"""boto3.s3.transfer."""

from unlade_guest.boto_errors import RetriesExceededError, S3UploadFailedError
from unlade_guest.s3.transfer_config import KB, MB, TransferConfig
from unlade_guest.s3.transfer_object import S3Transfer

__all__ = [
    "KB",
    "MB",
    "RetriesExceededError",
    "S3Transfer",
    "S3UploadFailedError",
    "TransferConfig",
]
