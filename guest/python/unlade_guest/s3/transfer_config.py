"""`TransferConfig`, and the extra arguments that transfers take."""

KB = 1024
MB = KB * KB
CHECKSUMS = """
    ChecksumCRC32 ChecksumCRC32C ChecksumCRC64NVME ChecksumMD5 ChecksumSHA1 ChecksumSHA256
    ChecksumSHA512 ChecksumXXHASH3 ChecksumXXHASH64 ChecksumXXHASH128
""".split()
SHARED = """
    ACL CacheControl ChecksumAlgorithm ContentDisposition ContentEncoding ContentLanguage
    ContentType ExpectedBucketOwner Expires GrantFullControl GrantRead GrantReadACP GrantWriteACP
    Metadata ObjectLockLegalHoldStatus ObjectLockMode ObjectLockRetainUntilDate RequestPayer
    ServerSideEncryption StorageClass SSECustomerAlgorithm SSECustomerKey SSECustomerKeyMD5
    SSEKMSKeyId SSEKMSEncryptionContext Tagging WebsiteRedirectLocation
""".split()
ALLOWED_UPLOAD_ARGS = SHARED + ["ChecksumType", "MpuObjectSize"] + CHECKSUMS
COPY_SOURCE_ARGS = """
    CopySourceIfMatch CopySourceIfModifiedSince CopySourceIfNoneMatch CopySourceIfUnmodifiedSince
    CopySourceSSECustomerAlgorithm CopySourceSSECustomerKey CopySourceSSECustomerKeyMD5
""".split()
DIRECTIVES = "MetadataDirective TaggingDirective AnnotationDirective".split()
ALLOWED_COPY_ARGS = SHARED + COPY_SOURCE_ARGS + DIRECTIVES
CUSTOMER = "SSECustomerKey SSECustomerAlgorithm SSECustomerKeyMD5".split()
PAYER = "RequestPayer ExpectedBucketOwner".split()
ALLOWED_DOWNLOAD_ARGS = [
    "ChecksumMode",
    "VersionId",
    "SSECustomerAlgorithm",
    "SSECustomerKey",
    "SSECustomerKeyMD5",
] + PAYER
PART_ARGS = ["ChecksumAlgorithm"] + CUSTOMER + PAYER
COMPLETE_ARGS = CUSTOMER + PAYER
CHECKSUM_DEFAULT = "CRC32"


def check(given, allowed):
    """ValueError for an extra argument that is not allowed."""
    for name in given:
        if name not in allowed:
            raise ValueError(
                "Invalid extra_args key '%s', must be one of: %s" % (name, ", ".join(allowed))
            )


class TransferConfig:
    """How transfers go. Threads are the host's: concurrency is how many calls are in flight."""

    # The real classes look at these, where one of them gets this configuration.
    max_submission_concurrency = 5
    max_request_queue_size = 1000
    max_submission_queue_size = 1000
    max_in_memory_upload_chunks = 10
    max_in_memory_download_chunks = 10
    ALIAS = {
        "max_concurrency": "max_request_concurrency",
        "max_io_queue": "max_io_queue_size",
    }

    def __init__(
        self,
        multipart_threshold=None,
        max_concurrency=None,
        multipart_chunksize=None,
        num_download_attempts=None,
        max_io_queue=None,
        io_chunksize=None,
        use_threads=None,
        max_bandwidth=None,
        preferred_transfer_client=None,
    ):
        self.multipart_threshold = _or(multipart_threshold, 8 * MB)
        self.multipart_chunksize = _or(multipart_chunksize, 8 * MB)
        self.max_concurrency = _or(max_concurrency, 10)
        self.num_download_attempts = _or(num_download_attempts, 5)
        self.max_io_queue = _or(max_io_queue, 100)
        self.io_chunksize = _or(io_chunksize, 256 * KB)
        self.max_bandwidth = max_bandwidth
        for name in self._checked():
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(
                    "Provided parameter %s of value %s must be greater than 0." % (name, value)
                )
        self.use_threads = _or(use_threads, True)
        self.preferred_transfer_client = _or(preferred_transfer_client, "auto")

    @staticmethod
    def _checked():
        return (
            "multipart_threshold",
            "multipart_chunksize",
            "max_request_concurrency",
            "max_io_queue_size",
            "io_chunksize",
            "num_download_attempts",
            "max_bandwidth",
        )

    def __setattr__(self, name, value):
        if name in self.ALIAS:
            super().__setattr__(self.ALIAS[name], value)
        super().__setattr__(name, value)


def _or(value, default):
    return default if value is None else value
