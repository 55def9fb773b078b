"""Ways to run a case: `outside` with stock boto3 and a plain interpreter, and under `unlade fn serve`
in the modes `stock` and `offload`."""

import base64
import json
import os
import re
import shutil
import subprocess
import sys

import boto3
import botocore
from botocore.config import Config

from case import REGION
from cloud import KEY, SECRET, filled, until
from collection import BEYOND, SERVICES

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGES = os.path.dirname(os.path.dirname(os.path.abspath(botocore.__file__)))
INVOKE_SECONDS_MAX = 120
DEPLOY_SECONDS_MAX = 180


class Failed(RuntimeError):
    """A case could not be run."""


def _shown(log):
    """The lines that a handler has written, without those of the runtime."""
    ours = re.compile(r"^(START|END|REPORT|INIT_START) ")
    return [line for line in log.splitlines() if line and not ours.match(line)]


class Outside:
    """A process of the interpreter, with keys and the endpoint in its environment."""

    name = "outside"

    def __init__(self, gateway):
        self._gateway = gateway

    def run(self, case, code, words, packages):
        """The results of the case's events."""
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": "/tmp",
            "LANG": "C.UTF-8",
            "TZ": ":UTC",
            "PYTHONPATH": os.pathsep.join([PACKAGES, *packages]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "AWS_LAMBDA_FUNCTION_NAME": case.alias,
            "AWS_REGION": case.region,
            "AWS_DEFAULT_REGION": case.region,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": "/dev/null",
            **self._gateway.access(),
            **filled(case.environment, words),
        }
        read, write = os.pipe()
        script = 'exec 3>&%d; exec "$0" "$@"' % write
        command = [
            "sh",
            "-c",
            script,
            sys.executable,
            os.path.join(HERE, "outside.py"),
            case.dotted,
        ]
        process = subprocess.Popen(
            command,
            cwd=code,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(write,),
            text=True,
        )
        os.close(write)
        with os.fdopen(read) as out:
            events = json.dumps(filled(case.events, words))
            log, errors = process.communicate(events, timeout=INVOKE_SECONDS_MAX)
            text = out.read()
        if process.returncode or not text:
            raise Failed("the handler does not start: " + errors.strip()[-600:])
        results = json.loads(text)
        return results, _shown(log)


class Gateway:
    """`unlade fn serve`, whose store and services are at the server that plays AWS."""

    def __init__(self, program, cloud, scratch, packages):
        self._program = program
        self._cloud = cloud
        self._scratch = scratch
        self._state = os.path.join(scratch, "state")
        config = os.path.join(scratch, "fn.toml")
        with open(config, "w", encoding="utf-8") as file:
            file.write(self._config(packages))
        self._log = open(os.path.join(scratch, "gateway.log"), "w", encoding="utf-8")
        address = os.path.join(scratch, "address")
        with open(address, "w", encoding="utf-8") as out:
            self._process = subprocess.Popen(
                [program, "fn", "serve", "--config", config],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=self._log,
            )
        self.url = until("the gateway listens", lambda: self._address(address))
        self._client = boto3.client(
            "lambda",
            region_name=REGION,
            endpoint_url=self.url,
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
            config=Config(retries={"max_attempts": 0}, read_timeout=INVOKE_SECONDS_MAX),
        )

    def _address(self, path):
        if self._process.poll() is not None:
            raise Failed("unlade fn serve ends: " + self.log()[-2000:])
        with open(path, encoding="utf-8") as file:
            found = re.search(r"http://[0-9.:]+", file.read())
        return found and found.group(0)

    def _config(self, packages):
        keys = 'credentials = { from = "keys", access_key_id = "%s", secret_access_key = "%s" }\n'
        keys %= (KEY, SECRET)
        said = {
            "listen": "127.0.0.1:0",
            "state": self._state,
            "python": os.path.realpath(sys.executable),
            "packages": [PACKAGES],
        }
        text = "".join("%s = %s\n" % (name, json.dumps(value)) for name, value in said.items())
        text += '[store]\nendpoint = "%s"\n%s[services]\n%s' % (self._cloud.url, keys, keys)
        for name in sorted((SERVICES | BEYOND) - {"s3", "lambda"}):
            text += '[services.endpoint.%s]\nurl = "%s"\n' % (name, self._cloud.url)
        pair = 'keys = [{ access_key_id = "%s", secret_access_key = "%s" }]\n' % (KEY, SECRET)
        modes = 'modes = ["offload", "prefetch", "sdk", "stock"]\n'
        return text + "[tenant.default]\n" + pair + modes + "packages = %s\n" % json.dumps(packages)

    def access(self):
        """Variables that stock boto3 needs: the servers' addresses, and a key."""
        return {
            "AWS_ENDPOINT_URL": self._cloud.url,
            "AWS_ENDPOINT_URL_LAMBDA": self.url,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }

    def log(self):
        """The gateway's output."""
        with open(self._log.name, encoding="utf-8", errors="replace") as file:
            return file.read()

    def deploy(self, name, code, manifest):
        """Deploys a copy of a directory, with a manifest. Raises Failed."""
        place = os.path.join(self._scratch, "deploy")
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(code, place)
        with open(os.path.join(place, "function.toml"), "w", encoding="utf-8") as file:
            file.write(manifest)
        environment = {
            **os.environ,
            "AWS_ENDPOINT_URL_LAMBDA": self.url,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }
        command = [self._program, "fn", "deploy", place, "--name", name]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=DEPLOY_SECONDS_MAX
        )
        if done.returncode:
            raise Failed("it is not deployed: " + done.stderr.strip()[-900:])

    def remove(self, name):
        """Removes a function."""
        self._client.delete_function(FunctionName=name)

    def invoke(self, name, event):
        """The result of an invocation, and the end of its log."""
        got = self._client.invoke(
            FunctionName=name, LogType="Tail", Payload=json.dumps(event).encode()
        )
        payload = json.loads(got["Payload"].read() or b"null")
        log = base64.b64decode(got.get("LogResult", "")).decode("utf-8", "replace")
        if "FunctionError" in got:
            kept = {key: payload.get(key) for key in ("errorType", "errorMessage")}
            return {"error": kept}, log
        return {"answer": payload}, log

    def close(self):
        """Ends it in order; RuntimeError where that fails."""
        self._process.terminate()
        status = self._process.wait(timeout=90)
        self._log.close()
        if status:
            raise RuntimeError("unlade fn serve ends with %d: %s" % (status, self.log()[-2000:]))


def manifest(case, words, mode, gateway, packages):
    """A function.toml."""
    lines = ["handler = " + json.dumps(case.dotted), 'mode = "%s"' % mode, 'timeout = "60s"']
    lines.append("memory = " + json.dumps(case.memory))
    if packages:
        lines.append("packages = " + json.dumps(packages))
    lines.append("[environment]")
    environment = dict(gateway.access()) if mode == "stock" else {}
    if case.region != REGION:
        environment["AWS_REGION"] = environment["AWS_DEFAULT_REGION"] = case.region
    environment.update(filled(case.environment, words))
    lines += ["%s = %s" % (key, json.dumps(value)) for key, value in environment.items()]
    actions = ["%s:*" % PREFIXES.get(name, name) for name in case.services.split()]
    lines += ["[[role.statements]]", 'effect = "allow"', "actions = " + json.dumps(actions)]
    return "\n".join(lines + ['resources = ["*"]', ""])


# Services whose rights have another name than the client.
PREFIXES = {
    "apigatewaymanagementapi": "execute-api",
    "bedrock-runtime": "bedrock",
    "iot-data": "iot",
    "resourcegroupstaggingapi": "tag",
    "sagemaker-runtime": "sagemaker",
    "stepfunctions": "states",
}


class Mode:
    """The gateway, with functions of one mode."""

    def __init__(self, gateway, name):
        self.name = name
        self._gateway = gateway

    def run(self, case, code, words, packages):
        """The results of the case's events, and what the handler has written."""
        text = manifest(case, words, self.name, self._gateway, packages)
        self._gateway.deploy(case.alias, code, text)
        try:
            results, log = [], []
            for event in filled(case.events, words):
                result, lines = self._gateway.invoke(case.alias, event)
                results.append(result)
                log += _shown(lines)
            return results, log
        finally:
            self._gateway.remove(case.alias)
