"""s3transfer's own exceptions."""

MODULE = "s3transfer.exceptions"


class RetriesExceededError(Exception):
    """A download was begun too often."""

    def __init__(self, last_exception, msg="Max Retries Exceeded"):
        super().__init__(msg)
        self.last_exception = last_exception


class S3UploadFailedError(Exception):
    """An upload failed."""


class S3DownloadFailedError(Exception):
    """A download failed."""


for _kind in (RetriesExceededError, S3UploadFailedError, S3DownloadFailedError):
    _kind.__module__ = MODULE
