"""MinIO as a store: where one is found, its process, and how to get one.

python minio.py           the path of the one that the tests use, or how to get it
python minio.py --install builds it with Go into the cache (some minutes, once)
"""

import os
import shutil
import ssl
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

import hosts

MODULE = "github.com/minio/minio"
VERSION = "v0.0.0-20260212201848-7aac2a2c5b7c"  # the last of its releases as a Go module
KEY, SECRET = "testing", "testing-secret"
HOW = "no minio: scripts/setup --with-minio builds it, or name one in UNLADE_MINIO"


def _cached():
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(base, "unlade", "minio-" + VERSION, "minio")


def find():
    """The program, or None: UNLADE_MINIO, the cache, the PATH."""
    named = os.environ.get("UNLADE_MINIO")
    if named:
        return named
    return _cached() if os.path.isfile(_cached()) else shutil.which("minio")


def install():
    """Builds it into the cache; whether that worked."""
    where = os.path.dirname(_cached())
    env = dict(os.environ, GOBIN=where, CGO_ENABLED="0", GOFLAGS="-buildvcs=false")
    env.setdefault("GOMAXPROCS", "1")
    command = ["go", "install", "-trimpath", "-ldflags=-s -w", "%s@%s" % (MODULE, VERSION)]
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run(command, env=env, cwd=folder).returncode == 0


def certify(folder):
    """A certificate of 127.0.0.1 by an authority of its own, as MinIO wants it; the authority's
    file. None where there is no openssl."""
    if shutil.which("openssl") is None:
        return None
    made = os.path.join(folder, "certs")
    os.makedirs(made)
    path = lambda name: os.path.join(made, name)  # noqa: E731
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    authority = path("authority.pem")
    run = lambda *words: subprocess.run(  # noqa: E731
        ["openssl", *words], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    own = ["-keyout", path("authority.key"), "-out", authority, "-days", "2"]
    run("req", "-x509", *key, *own, "-subj", "/CN=unlade test authority")
    asked = path("asked.pem")
    run("req", *key, "-keyout", path("private.key"), "-out", asked, "-subj", "/CN=127.0.0.1")
    with open(path("extensions"), "w") as file:
        file.write("subjectAltName=IP:127.0.0.1\nbasicConstraints=critical,CA:FALSE\n")
    signer = ["-CA", authority, "-CAkey", path("authority.key"), "-CAcreateserial"]
    more = ["-extfile", path("extensions"), "-out", path("public.crt"), "-days", "2"]
    run("x509", "-req", "-in", asked, *signer, *more)
    return authority


class Minio:
    """One process with one directory. With `tls`, `ca` is who to trust."""

    KEY, SECRET = KEY, SECRET

    def __init__(self, tls=False):
        self.folder = tempfile.mkdtemp(prefix="unlade-minio-")
        self.ca = certify(self.folder) if tls else None
        self.context = ssl.create_default_context(cafile=self.ca) if self.ca else None
        try:
            self.process = hosts.started(self._spawn, self._answers)
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def _spawn(self, port):
        self.port = port
        self.endpoint = "%s://127.0.0.1:%d" % ("https" if self.ca else "http", port)
        env = dict(os.environ, MINIO_ROOT_USER=KEY, MINIO_ROOT_PASSWORD=SECRET, MINIO_BROWSER="off")
        command = [find(), "server", "--quiet", "--address", "127.0.0.1:%d" % port]
        command += ["--certs-dir", os.path.join(self.folder, "certs")]
        return subprocess.Popen(
            command + [os.path.join(self.folder, "objects")],
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def _answers(self):
        url = self.endpoint + "/minio/health/live"
        try:
            urllib.request.urlopen(url, timeout=20, context=self.context).close()
            return True
        except (urllib.error.URLError, ConnectionError):
            return False

    def reset(self):
        """Forgets everything."""
        from botocore.exceptions import ClientError

        client = self._client()
        try:
            for bucket in client.list_buckets()["Buckets"]:
                name = {"Bucket": bucket["Name"]}
                for upload in client.list_multipart_uploads(**name).get("Uploads", []):
                    which = {"Key": upload["Key"], "UploadId": upload["UploadId"]}
                    client.abort_multipart_upload(**name, **which)
                client.delete_bucket(**name)
        except ClientError:
            # Objects that are locked go with the whole store.
            self._stop()
            shutil.rmtree(os.path.join(self.folder, "objects"))
            self.process = hosts.started(self._spawn, self._answers, self.port)

    def _client(self):
        """A client whose deletions take what is in a bucket with it."""
        if getattr(self, "_made", None) is None:
            import botocore.session

            session = botocore.session.Session()
            session.set_credentials(KEY, SECRET)
            self._made = session.create_client(
                "s3", region_name="us-east-1", endpoint_url=self.endpoint, verify=self.ca
            )
            force = lambda request, **_: request.headers.add_header(  # noqa: E731
                "x-minio-force-delete", "true"
            )
            self._made.meta.events.register("before-sign.s3.DeleteBucket", force)
        return self._made

    def close(self):
        """Ends it."""
        self._stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _stop(self):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def main():
    """Says where it is, or builds it."""
    if "--install" in sys.argv and find() is None and not install():
        sys.exit("minio could not be built")
    sys.exit(0 if find() and not print(find()) else HOW)


if __name__ == "__main__":
    main()
