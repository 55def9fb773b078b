"""The functions do what they say, with stock boto3 against a store; wrong outputs are found."""

import contextlib
import importlib.util
import io
import os
import subprocess
import sys
import tempfile
import tomllib
import unittest
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
sys.path.insert(0, ROOT)

import check  # noqa: E402
import inputs  # noqa: E402

SEED = 7
ACCESS_KEY, SECRET_KEY = "workloads", "workloads-secret"


def manifest(name):
    """A function's function.toml."""
    with open(os.path.join(ROOT, name, "function.toml"), "rb") as file:
        return tomllib.load(file)


def imported(name, endpoint):
    """A function's module, as a fresh instance would import it."""
    environment = {
        "AWS_ENDPOINT_URL_S3": endpoint,
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    os.environ.update(environment | manifest(name).get("environment", {}))
    path = os.path.join(ROOT, name, "app.py")
    spec = importlib.util.spec_from_file_location("app", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def program():
    """The built program; none where it is not there."""
    target = os.path.join(os.path.dirname(os.path.dirname(ROOT)), "target")
    places = [os.environ.get("UNLADE_BIN", "")]
    places += [os.path.join(target, kind, "unlade") for kind in ("release", "debug")]
    return next((place for place in places if place and os.access(place, os.X_OK)), None)


@contextlib.contextmanager
def store():
    """The built-in store, in a directory of its own; gives its address."""
    with tempfile.TemporaryDirectory(prefix="unlade-workloads-") as directory:
        secret = os.path.join(directory, "secret")
        with open(secret, "w", encoding="utf-8") as file:
            file.write(SECRET_KEY)
        command = [program(), "fn", "store", "--dir", os.path.join(directory, "objects")]
        command += ["--listen", "127.0.0.1:0", "--access-key", ACCESS_KEY]
        command += ["--secret-key-file", secret]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                yield process.stdout.readline().strip()
            finally:
                process.terminate()


class Memory:
    """As much of a client as the functions need; what is put can be got."""

    def __init__(self, contents):
        self.objects = {(inputs.INPUTS, key): octets for key, octets in contents.items()}

    def get_object(self, Bucket, Key):
        return {"Body": io.BytesIO(self.objects[Bucket, Key])}

    def put_object(self, Bucket, Key, Body, ContentType=None):
        self.objects[Bucket, Key] = Body

    def upload_fileobj(self, file, bucket, key, ExtraArgs=None):
        self.objects[bucket, key] = file.read()

    def outputs(self, case):
        key = case.event["output"]["key"]
        return {suffix: self.objects[inputs.OUTPUTS, key + suffix] for suffix in case.outputs}


def run(case):
    """A case's outputs, without a store."""
    module = imported(case.name, "http://127.0.0.1:1")
    with mock.patch.object(module, "s3", Memory(case.contents)):
        module.handler(case.event, None)
        return module.s3.outputs(case)


class Functions(unittest.TestCase):
    def test_every_directory_is_a_workload(self):
        found = {name for name in os.listdir(ROOT) if os.path.exists(f"{ROOT}/{name}/app.py")}
        self.assertEqual(found, set(inputs.MAKERS))
        self.assertEqual(found, set(check.CHECKS))
        self.assertEqual(len(found), 12)

    def test_outputs_are_right_with_a_store(self):
        if program() is None:
            print("skipped: unlade is not built (UNLADE_BIN, target/)")
            return
        import boto3

        with store() as endpoint:
            imported("template", endpoint)  # the environment of clients
            client = boto3.client("s3")
            for bucket in (inputs.INPUTS, inputs.OUTPUTS):
                client.create_bucket(Bucket=bucket)
            for case in inputs.cases(SEED):
                with self.subTest(case.name):
                    module = imported(case.name, endpoint)
                    self.assertTrue(module.s3.__class__.__module__.startswith("botocore."))
                    for key, octets in case.contents.items():
                        client.put_object(Bucket=inputs.INPUTS, Key=key, Body=octets)
                    module.handler(case.event, None)
                    outputs = {}
                    for suffix in case.outputs:
                        key = case.event["output"]["key"] + suffix
                        answer = client.get_object(Bucket=inputs.OUTPUTS, Key=key)
                        outputs[suffix] = answer["Body"].read()
                    check.check({"name": case.name}, case.contents, outputs)

    def test_the_same_input_gives_the_same_output(self):
        for case in inputs.cases(SEED):
            with self.subTest(case.name):
                self.assertEqual(run(case), run(case))

    def test_wrong_outputs_are_found(self):
        for case in inputs.cases(SEED):
            outputs = run(case)
            check.check({"name": case.name}, case.contents, outputs)
            for suffix, octets in outputs.items():
                for wrong in (b"", octets[: len(octets) // 2], b"{}"):
                    with self.subTest(case.name), self.assertRaises(Exception):
                        changed = outputs | {suffix: wrong}
                        check.check({"name": case.name}, case.contents, changed)

    def test_another_input_gives_another_output(self):
        for first, second in zip(inputs.cases(SEED), inputs.cases(SEED + 1)):
            with self.subTest(first.name):
                self.assertNotEqual(run(first), run(second))


class WebAssembly(unittest.TestCase):
    def test_it_does_what_the_function_does(self):
        import wasmtime

        sys.path.insert(0, os.path.join(ROOT, "wasm"))
        import serve

        engine = wasmtime.Engine()
        with open(os.path.join(ROOT, "wasm", "log_filter.wat"), encoding="utf-8") as file:
            module = wasmtime.Module(engine, file.read())
        for seed in (SEED, SEED + 1):
            (case,) = [case for case in inputs.cases(seed) if case.name == "log-filter"]
            (log,) = case.contents.values()
            for octets in (log, log[:1000], b"", b'no" 5', b'a" 5\n\nb\n" 6" 5'):
                case.contents = {key: octets for key in case.contents}
                self.assertEqual(serve.Filter(engine, module).run(octets), run(case)[""])


class Inputs(unittest.TestCase):
    def test_the_same_seed_makes_the_same_octets(self):
        for first, second in zip(inputs.cases(SEED), inputs.cases(SEED)):
            self.assertEqual(first.contents, second.contents, first.name)

    def test_sizes_are_exact(self):
        sizes = [sum(map(len, case.contents.values())) for case in inputs.sizes(SEED)]
        self.assertEqual(sizes, list(inputs.SIZES))


if __name__ == "__main__":
    unittest.main()
