"""Other packages' tests: out of their source distributions, fetched once into the cache."""

import fcntl
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile

# Name, version and SHA-256 of the source distribution: those of tests/requirements.txt.
PINNED = {
    "moto": ("5.2.5", "391857257d5dac144334013c2c10e599def5f0562f553e979160140bd7bd9cf6"),
    "botocore": ("1.44.5", "a988f39e3a4484def0b8010f41128f71157da0515a4804fccce4739aa8f216da"),
    "s3transfer": ("0.19.3", "8326acc3d056d7f7b8a37110c7d2aea41f67e83f6ae79cd3b5fbcca34c726406"),
}
FETCH_SECONDS_MAX = 300


class Missing(Exception):
    """The distribution cannot be had here, and why."""


def cache():
    """Where things are kept that are fetched."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(base, "unlade")


def tests_of(package):
    """The directory in which `tests/` of a package's source distribution lies. Missing."""
    version, digest = PINNED[package]
    where = os.path.join(cache(), "upstream-%s-%s-%s" % (package, version, digest[:8]))
    os.makedirs(cache(), exist_ok=True)
    with open(where + ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.isdir(where):
            _fetch(package, version, digest, where)
    return where


def _fetch(package, version, digest, where):
    with tempfile.TemporaryDirectory(dir=cache()) as folder:
        wanted = os.path.join(folder, "wanted.txt")
        with open(wanted, "w") as file:
            file.write("%s==%s --hash=sha256:%s\n" % (package, version, digest))
        command = [sys.executable, "-m", "pip", "download", "-q", "--require-hashes"]
        command += ["--no-deps", "--no-binary", ":all:", "-d", folder, "-r", wanted]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=FETCH_SECONDS_MAX
            )
        except subprocess.TimeoutExpired:
            raise Missing("PyPI does not answer")
        if done.returncode != 0:
            raise Missing("PyPI gives no %s: %s" % (package, done.stderr.strip()[-300:]))
        (archive,) = [name for name in os.listdir(folder) if name.endswith(".tar.gz")]
        unpacked = os.path.join(folder, "unpacked")
        _unpack(os.path.join(folder, archive), unpacked)
        # Whole, or not there.
        shutil.move(unpacked, where)


def _unpack(archive, to):
    """The tests alone: the packages themselves are those that are installed."""
    os.makedirs(to)
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            _, _, inside = member.name.partition("/")
            if not inside.startswith("tests/") or ".." in inside.split("/"):
                continue
            path = os.path.join(to, inside)
            if member.isfile():
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "wb") as file:
                    shutil.copyfileobj(tar.extractfile(member), file)
    with open(os.path.join(to, "pytest.ini"), "w") as file:
        file.write("[pytest]\n")
