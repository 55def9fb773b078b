"""`S3Transfer` and `TransferManager`: transfers as methods of an object."""

import sys

from . import transfer
from .transfer_config import (
    ALLOWED_COPY_ARGS,
    ALLOWED_DOWNLOAD_ARGS,
    ALLOWED_UPLOAD_ARGS,
    TransferConfig,
)


def _of_real(module, name, client):
    """The real class of a name for a client of the real boto3; None for one of ours."""
    real = sys.modules.get("unlade_guest.real")
    if real is None or real.state.loaded is None:
        return None
    from botocore.client import BaseClient

    if not isinstance(client, BaseClient):
        return None
    __import__(module)
    return getattr(sys.modules[module], name)


class S3Transfer:
    """boto3's transfers, with their arguments in small letters."""

    def __new__(cls, client=None, *args, **kwargs):
        kind = _of_real("boto3.s3.transfer", "S3Transfer", client)
        return object.__new__(cls) if kind is None else kind(client, *args, **kwargs)

    ALLOWED_DOWNLOAD_ARGS = ALLOWED_DOWNLOAD_ARGS
    ALLOWED_UPLOAD_ARGS = ALLOWED_UPLOAD_ARGS
    ALLOWED_COPY_ARGS = ALLOWED_COPY_ARGS

    def __init__(self, client=None, config=None, osutil=None, manager=None):
        if not client and not manager:
            raise ValueError(
                "Either a boto3.Client or s3transfer.manager.TransferManager must be provided"
            )
        if manager and any([client, config, osutil]):
            raise ValueError(
                "Manager cannot be provided with client, config, nor osutil. "
                "These parameters are mutually exclusive."
            )
        self._client = client or manager.client
        self._config = config or (manager.config if manager else TransferConfig())

    def upload_file(self, filename, bucket, key, callback=None, extra_args=None):
        """Uploads a file."""
        transfer.upload_file(
            self._client, filename, bucket, key, extra_args, callback, self._config
        )

    def download_file(self, bucket, key, filename, extra_args=None, callback=None):
        """Downloads to a file."""
        transfer.download_file(
            self._client, bucket, key, filename, extra_args, callback, self._config
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


class Future:
    """A transfer that has been tried."""

    def __init__(self, do):
        self._error = None
        try:
            do()
        except Exception as error:  # kept for whoever asks for the result
            self._error = error

    def done(self):
        """It has ended when the caller gets it."""
        return True

    def result(self):
        """None, or the exception that ended it."""
        if self._error is not None:
            raise self._error

    def cancel(self):
        """Too late."""


def _callback(subscribers):
    heard = [s for s in subscribers or () if hasattr(s, "on_progress")]
    if not heard:
        return None
    return lambda number: [s.on_progress(future=None, bytes_transferred=number) for s in heard]


class TransferManager:
    """s3transfer's manager. A transfer is done when its method returns."""

    def __new__(cls, client, *args, **kwargs):
        kind = _of_real("s3transfer.manager", "TransferManager", client)
        return object.__new__(cls) if kind is None else kind(client, *args, **kwargs)

    ALLOWED_DOWNLOAD_ARGS = ALLOWED_DOWNLOAD_ARGS
    ALLOWED_UPLOAD_ARGS = ALLOWED_UPLOAD_ARGS
    ALLOWED_COPY_ARGS = ALLOWED_COPY_ARGS

    def __init__(self, client, config=None, osutil=None, executor_cls=None):
        self.client = client
        self.config = config or TransferConfig()

    def upload(self, fileobj, bucket, key, extra_args=None, subscribers=None):
        """Uploads a file by its name, or a file-like object."""
        callback = _callback(subscribers)
        if not isinstance(fileobj, str):
            return Future(
                lambda: transfer.upload_fileobj(
                    self.client, fileobj, bucket, key, extra_args, callback, self.config
                )
            )

        def do():
            with open(fileobj, "rb") as file:
                transfer.upload_fileobj(
                    self.client, file, bucket, key, extra_args, callback, self.config
                )

        return Future(do)

    def download(self, bucket, key, fileobj, extra_args=None, subscribers=None):
        """Downloads to a file by its name, or a file-like object."""
        method = transfer.download_file if isinstance(fileobj, str) else transfer.download_fileobj
        callback = _callback(subscribers)
        return Future(
            lambda: method(self.client, bucket, key, fileobj, extra_args, callback, self.config)
        )

    def copy(self, copy_source, bucket, key, extra_args=None, subscribers=None, source_client=None):
        """Copies an object."""
        callback = _callback(subscribers)
        return Future(
            lambda: transfer.copy(
                self.client,
                copy_source,
                bucket,
                key,
                extra_args,
                callback,
                source_client,
                self.config,
            )
        )

    def delete(self, bucket, key, extra_args=None, subscribers=None):
        """Deletes an object."""
        return Future(
            lambda: self.client.delete_object(Bucket=bucket, Key=key, **(extra_args or {}))
        )

    def shutdown(self, cancel=False, cancel_msg=""):
        """There is nothing to wait for."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.shutdown()
