"""A collection of functions of others: a git repository at a commit, and the rule that takes files.

The rule, for a Python file of aws-samples/serverless-patterns: it is taken if
1. it has a handler: a function at its top level with two parameters, an event and a context;
2. it imports boto3 or botocore, and nothing else but the standard library and files beside it;
3. it names at least one service, and only services of `SERVICES`.
"""

import ast
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

from case import Part

ADAPTERS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "adapters")
COMMITS = {
    "serverless-patterns": "fb7b5d06c27d8abb1bd35e52ab7523acf4baab7b",
    "vSwarm": "11be651eb39a961e7bd1725acbca921ab03fb8e1",
    "vSwarm-proto": "eba6cb9fcb469afcf4c0b17be7643ed3290e65a6",
}
SERVICES = frozenset(
    "cloudwatch dynamodb events kinesis kms lambda logs s3 secretsmanager sns sqs ssm stepfunctions"
    " sts".split()
)
# Services of cases that are beyond the rule.
BEYOND = frozenset(
    "apigatewaymanagementapi athena bedrock-runtime cognito-idp comprehend glue iot-data rds"
    " rekognition resourcegroupstaggingapi sagemaker-runtime scheduler ses textract transcribe".split()
)
SDK = frozenset(("boto3", "botocore"))
EVENTS = frozenset(("event", "evt", "e", "input", "payload", "request", ""))
CONTEXTS = frozenset(("context", "ctx", "c", ""))
CLIENT = re.compile(r"""\b(?:client|resource)\(\s*(?:service_name\s*=\s*)?['"]([a-z0-9-]+)['"]""")


class Repository:
    """A git repository, bare or not, at a commit."""

    def __init__(self, directory, commit):
        self.commit = commit
        found = subprocess.run(
            ["git", "-C", directory, "rev-parse", "--absolute-git-dir"],
            capture_output=True,
            text=True,
        )
        self.git_dir = found.stdout.strip() or os.path.realpath(directory)

    def _git(self, *words, data=None):
        command = ["git", "--git-dir", self.git_dir, *words]
        return subprocess.run(command, input=data, capture_output=True, check=True).stdout

    def python_files(self):
        """Each Python file's path and bytes, in the order of paths."""
        lines = self._git("ls-tree", "-r", "-z", self.commit).decode().split("\0")
        rows = [line.partition("\t") for line in lines if line.endswith(".py")]
        blobs = sorted((path, meta.split()[2]) for meta, _, path in rows if meta.startswith("100"))
        asked = "".join("%s\n" % blob for _, blob in blobs).encode()
        stream = io.BytesIO(self._git("cat-file", "--batch", data=asked))
        for path, _ in blobs:
            head = stream.readline().split()
            if head[1:2] != [b"blob"]:
                raise RuntimeError("%s is not in the repository: %r" % (path, head))
            content = stream.read(int(head[2]))
            stream.read(1)
            yield path, content

    def content(self, path):
        """The bytes of a file."""
        return self._git("cat-file", "blob", "%s:%s" % (self.commit, path))

    def extract(self, paths, out):
        """Writes files, and directories with all that is in them, readable by all."""
        archive = self._git("archive", "--format=tar", self.commit, *paths)
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(out, filter="data")
        for place, _, names in os.walk(out):
            os.chmod(place, 0o755)
            for name in names:
                os.chmod(os.path.join(place, name), 0o755)


def unpack(repositories, case, out):
    """Writes what a case deploys into a directory; the directory with its handler."""
    os.makedirs(out)
    if not case.parts:
        repositories[case.collection].extract([case.directory], out)
        return os.path.join(out, case.directory)
    for part in case.parts:
        part = part if isinstance(part, Part) else Part(part)
        with tempfile.TemporaryDirectory() as scratch:
            repositories[part.collection or case.collection].extract([part.path], scratch)
            found = os.path.join(scratch, part.path)
            names = os.listdir(found) if os.path.isdir(found) else [""]
            place = os.path.join(out, part.place)
            os.makedirs(place, exist_ok=True)
            for name in names:
                shutil.copy(os.path.join(found, name).rstrip("/"), place)
    if case.adapter:
        shutil.copy(os.path.join(ADAPTERS, case.adapter), out)
    return out


def is_handler(node):
    """True if a statement is a function that Lambda could call."""
    if not isinstance(node, ast.FunctionDef) or len(node.args.args) != 2:
        return False
    first, second = (each.arg.strip("_").lower() for each in node.args.args)
    return first in EVENTS and second in CONTEXTS


def imports(tree):
    """The names of the packages that a module imports, from wherever."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {each.name.partition(".")[0] for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.partition(".")[0])
    return names


def judge(content, beside):
    """Why a file is not taken; `None` if it is. `beside` has the modules of its directory."""
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):
        return "it is no Python 3"
    if not any(map(is_handler, tree.body)):
        return "it has no handler"
    names = imports(tree)
    if not names & SDK:
        return "a handler without boto3"
    foreign = names - SDK - sys.stdlib_module_names - beside
    if foreign:
        return "a handler that needs other packages"
    services = set(CLIENT.findall(content.decode("utf-8", "replace")))
    if not services:
        return "a handler that names no service"
    if services - SERVICES:
        return "a handler of other services"
    return None


def survey(repository):
    """The paths that the rule takes, and the numbers of those that it does not, by reason."""
    files = list(repository.python_files())
    modules = {}
    for path, _ in files:
        place, _, name = path.rpartition("/")
        modules.setdefault(place, set()).add(name.removesuffix(".py"))
        parent, _, package = place.rpartition("/")
        modules.setdefault(parent, set()).add(package)
    taken, left = [], {}
    for path, content in files:
        why = judge(content, modules[path.rpartition("/")[0]])
        if why is None:
            taken.append(path)
        else:
            left[why] = left.get(why, 0) + 1
    return taken, left
