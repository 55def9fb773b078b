"""Which tests of other packages run, and which do not pass through the stub, each with its reason.

A test counts when it passes with stock boto3 against the same store. Of those, all have to pass
through the stub but for `OTHERWISE`; what is listed there has to fail still, or the list is wrong.
"""

import os
import re

SERVICES = "calls a service other than S3, which `unlade fn worker` does not carry"
NETWORK = "asks AWS itself, over the network"
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
        ["tests/test_s3"],
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
}
