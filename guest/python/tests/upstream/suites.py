"""Which tests of other packages run, and which do not pass through the stub, each with its reason.

A test counts when it passes with stock boto3 against the same store. Of those, all have to pass
through the stub but for `OTHERWISE`; what is listed there has to fail still, or the list is wrong.
"""

import os
import re

SERVICES = "calls a service other than S3, which `unlade fn worker` does not carry"
NETWORK = "asks AWS itself, over the network"
RUNTIME = "needs the AWS common runtime (awscrt), which is not installed"
CONTAINERS = "the store runs a function in a container, and there is none here"


class Suite:
    """Files of a package's tests, left out before they run or known to fail through the stub."""

    def __init__(self, package, quick, rest, least, **more):
        self.package = package
        self.quick, self.rest, self.least = quick, rest, least
        self._more(**more)

    def _more(self, left_out=(), otherwise=(), environment=()):
        self.left_out = dict(left_out)
        self.otherwise = [(re.compile(pattern), why) for pattern, why in otherwise]
        self.environment = dict(environment)

    def chosen(self):
        """The files that run."""
        return self.quick + (self.rest if os.environ.get("UPSTREAM") == "all" else [])

    def why(self, test):
        """Why a test is not expected to pass through the stub; None where it is."""
        return next((why for pattern, why in self.otherwise if pattern.search(test)), None)


SUITES = {
    # moto's tests of its S3, with moto as a server: they speak to it with boto3.
    "moto": Suite(
        "moto",
        quick=["tests/test_s3"],
        rest=[],
        least=400,
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
        environment={"TEST_SERVER_MODE": "true"},
    ),
    # s3transfer's tests against a store, with clients of `botocore.session`.
    "s3transfer": Suite(
        "s3transfer",
        quick=["tests/integration/test_download.py", "tests/integration/test_upload.py"],
        rest=["tests/integration"],
        least=10,
        left_out={"tests/integration/test_crt.py": RUNTIME},
        environment={"AWS_DEFAULT_REGION": "us-west-2"},
    ),
    # botocore's tests of S3 against a store.
    "botocore": Suite(
        "botocore",
        quick=[],
        rest=["tests/integration/test_s3.py"],
        least=20,
        environment={"AWS_DEFAULT_REGION": "us-west-2"},
    ),
}
