"""Which tests of other packages run, and which do not pass through the stub, each with its reason.

A test counts when it passes with stock boto3 against the same store. Of those, all have to pass
through the stub but for `OTHERWISE`; what is listed there has to fail still, or the list is wrong.
"""

import os
import re
from pathlib import Path

CLOUDFORMATION = "the store's CloudFormation needs packages that are not installed"
NETWORK = "asks AWS itself, over the network"
DOTS = "a key with . or .. between slashes, which the host refuses: servers resolve it differently"
SIGNING = "listens to requests being signed, which happens in the host"
PROCESSES = "downloads in processes that it forks, which have no channel of their own"
RUNTIME = "needs the AWS common runtime (awscrt), which is not installed"
KEYS = "makes a client of S3 with keys that moto puts into the environment: it is refused"
VERSION_2 = "expects a URL of Signature Version 2, stock boto3's choice; the host makes Version 4"
PARTITION = "a role of another partition: global services at an operator's endpoint are of us-east-1"
CONTAINERS = "the store runs a function in a container, and there is none here"


# What tests expect of their surroundings that were written against AWS.
FAR_AWAY = {"AWS_DEFAULT_REGION": "us-west-2", "UPSTREAM_SLEEP_SECONDS_MAX": "0.02"}

# Services other than S3 whose tests by moto run, and those that these tests call beside them.
OTHERS = (
    "cloudwatch dynamodb dynamodbstreams events firehose iam kinesis kms logs scheduler "
    "secretsmanager sns sqs ssm stepfunctions sts"
).split()
CARRIED = OTHERS + "config ec2 lambda organizations resourcegroupstaggingapi".split()


class Suite:
    """Files of a package's tests, left out before they run or known to fail through the stub."""

    def __init__(self, package, quick, all_files, least, **more):
        self.package = package
        self.quick, self.all_files, self.least = quick, all_files, least
        self._more(**more)

    def _more(self, left_out=(), otherwise=(), environment=(), **more):
        self.services = more.get("services", ())
        self.seconds_max = more.get("seconds_max", 600)
        self.asks_only = more.get("asks_only", False)
        self.left_out = dict(left_out)
        self.otherwise = [(re.compile(pattern), why) for pattern, why in otherwise]
        self.environment = dict(environment)

    def chosen(self):
        """The files that run."""
        return self.all_files if os.environ.get("UPSTREAM") == "all" else self.quick

    def silent(self, where):
        """Files that name no boto3: they make no request, and would show nothing."""
        if not self.asks_only:
            return
        for name in self.chosen():
            for path in Path(where, name).rglob("test_*.py"):
                if "boto3." not in path.read_text(encoding="utf-8"):
                    yield str(path.relative_to(where))

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
            "tests/test_s3/test_s3_cloudformation.py": CLOUDFORMATION,
        },
        otherwise=[("test_presigned_put_url_with_(approved|custom)_headers$", VERSION_2)],
        # Its tests give dummy keys to their clients, of S3 too.
        environment={"TEST_SERVER_MODE": "true", "UNLADE_KEYS": "ignore"},
        services=CARRIED,
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
    # moto's tests of other services; a file that names no boto3 makes no request, and is left out.
    "moto-services": Suite(
        "moto",
        quick=[
            "tests/test_dynamodb/test_dynamodb_batch_get_item.py",
            "tests/test_dynamodb/test_dynamodb_query.py",
            "tests/test_events/test_events_integration.py",
            "tests/test_kinesis/test_kinesis_stream_consumers.py",
            "tests/test_logs/test_logs_filter_log_events.py",
            "tests/test_secretsmanager/test_secrets_duplication.py",
            "tests/test_sns/test_subscriptions.py",
            "tests/test_sqs/test_sqs_integration.py",
            "tests/test_sqs/test_sqs_message_attributes.py",
            "tests/test_sqs/test_sqs_multiaccount.py",
            "tests/test_ssm/test_ssm_parameterstore.py",
            "tests/test_sts/test_sts.py",
        ],
        all_files=["tests/test_" + name for name in OTHERS],
        least=60,
        otherwise=[
            ("test_cloudwatch.py::test_cloudwatch_return_s3_metrics$", KEYS),
            ("test_dynamodb_export_table.py::test_(export_(from|point|empty|table$)|list)", KEYS),
            ("test_dynamodb_import_table.py::test_(import_from_empty|import_table_)", KEYS),
            ("test_dynamodb_import_table.py::test_(some_succ|only_process|process_gzipped)", KEYS),
            ("test_events_lambdatriggers_integration.py::test_creat", KEYS),
            ("test_events_sfn_integration.py::", KEYS),
            ("test_put_record_batch_extended_s3_destination$", KEYS),
            ("test_export_tasks.py::test_create_export_(task_happy|executes)", KEYS),
            ("test_export_tasks.py::test_create_export_raises_.*log_group_not_found$", KEYS),
            ("test_export_tasks.py::test_describe_export_tasks_(happy|out_of|task_id)", KEYS),
            ("test_logs/test_integration.py::test_put_subscription_filter_with_firehose$", KEYS),
            (r"test_sts.py::test_assume_role\[us-isob-east-1-", PARTITION),
        ],
        environment={"TEST_SERVER_MODE": "true"},
        services=CARRIED,
        seconds_max=2400,
        asks_only=True,
    ),
    # botocore's own tests of what these services customise; a stub answers in place of a server.
    "botocore-functional": Suite(
        "botocore",
        quick=["tests/functional/test_dynamodb.py", "tests/functional/test_sqs.py"],
        all_files=["tests/functional/test_dynamodb.py", "tests/functional/test_sqs.py"],
        least=1,
        environment=FAR_AWAY,
        services=CARRIED,
    ),
}
