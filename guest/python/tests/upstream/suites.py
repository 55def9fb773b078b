"""Which tests of other packages run, and which do not pass through the stub, each with its reason.

A test counts when it passes with stock boto3 against the same store. Of those, all have to pass
through the stub but for `OTHERWISE`; what is listed there has to fail still, or the list is wrong.
"""

import os
import re

SERVICES = "calls a service other than S3, which `unlade fn worker` does not carry"
NETWORK = "asks AWS itself, over the network"
DOTS = "a key with . or .. between slashes, which the host refuses: servers resolve it differently"
SIGNING = "listens to requests being signed, which happens in the host"
PROCESSES = "downloads in processes that it forks, which have no channel of their own"
RUNTIME = "needs the AWS common runtime (awscrt), which is not installed"
CONTAINERS = "the store runs a function in a container, and there is none here"


# What tests expect of their surroundings that were written against AWS.
FAR_AWAY = {"AWS_DEFAULT_REGION": "us-west-2", "UPSTREAM_SLEEP_SECONDS_MAX": "0.02"}


class Suite:
    """Files of a package's tests, left out before they run or known to fail through the stub."""

    def __init__(self, package, quick, all_files, least, **more):
        self.package = package
        self.quick, self.all_files, self.least = quick, all_files, least
        self._more(**more)

    def _more(self, left_out=(), otherwise=(), environment=()):
        self.left_out = dict(left_out)
        self.otherwise = [(re.compile(pattern), why) for pattern, why in otherwise]
        self.environment = dict(environment)

    def chosen(self):
        """The files that run."""
        return self.all_files if os.environ.get("UPSTREAM") == "all" else self.quick

    def why(self, test):
        """Why a test is not expected to pass through the stub; None where it is."""
        return next((why for pattern, why in self.otherwise if pattern.search(test)), None)


SUITES = {
    # moto's tests of its S3, with moto as a server: they speak to it with boto3.
    "moto": Suite(
        "moto",
        quick=[
            "tests/test_s3/test_s3_acl.py",
            "tests/test_s3/test_s3_conditionals.py",
            "tests/test_s3/test_s3_list_object_versions.py",
            "tests/test_s3/test_s3_select.py",
            "tests/test_s3/test_s3_tagging.py",
        ],
        all_files=["tests/test_s3"],
        least=60,
        left_out={
            "tests/test_s3/test_s3_lambda_integration.py": CONTAINERS,
            "tests/test_s3/test_s3_cloudformation.py": SERVICES,
        },
        otherwise=[
            ("test_s3_eventbridge_integration.py::", SERVICES),
            ("test_s3_integration.py::test_rgtapi", SERVICES),
            ("test_copy_object_with_kms_encryption|test_copy_object_in_place_with_enc", SERVICES),
            ("test_public_access_block$|test_send_event_bridge_message", SERVICES),
        ],
        # Its tests give dummy keys to their clients, of S3 too.
        environment={"TEST_SERVER_MODE": "true", "UNLADE_KEYS": "ignore"},
    ),
    # s3transfer's tests against a store, with clients of `botocore.session`.
    "s3transfer": Suite(
        "s3transfer",
        quick=["tests/integration/test_copy.py", "tests/integration/test_delete.py"],
        all_files=["tests/integration"],
        least=3,
        left_out={"tests/integration/test_crt.py": RUNTIME},
        otherwise=[("test_processpool.py::.*_threshold$", PROCESSES)],
        environment=FAR_AWAY,
    ),
    # botocore's tests of S3 against a store.
    "botocore": Suite(
        "botocore",
        quick=["tests/integration/test_s3.py::TestS3Objects"],
        all_files=["tests/integration/test_s3.py"],
        least=10,
        otherwise=[
            ("::test_non_normalized_key_paths$", DOTS),
            ("::test_thread_safe_auth$", SIGNING),
        ],
        environment=FAR_AWAY,
    ),
}
