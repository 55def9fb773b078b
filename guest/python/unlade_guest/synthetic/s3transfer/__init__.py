"""s3transfer: transfers of a client."""

from unlade_guest.s3.transfer_config import TransferConfig
from unlade_guest.s3.transfer_object import S3Transfer

__version__ = "0.19.3"
__all__ = ["S3Transfer", "TransferConfig"]
