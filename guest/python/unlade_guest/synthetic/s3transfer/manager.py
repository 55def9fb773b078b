"""s3transfer.manager."""

from unlade_guest.s3.transfer_config import TransferConfig
from unlade_guest.s3.transfer_object import TransferManager

__all__ = ["TransferConfig", "TransferManager"]
