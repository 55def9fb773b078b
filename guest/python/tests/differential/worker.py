"""Runs cases by their names, with whichever boto3 this process has; answers in JSON lines.

python worker.py stock|stub
"""

import faulthandler
import json
import os
import shutil
import sys
import tempfile
import traceback

CASE_SECONDS_MAX = 40  # a case that hangs ends its worker, and says where
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)


class Trial:
    """What a case works with, and where it writes what it sees."""

    def __init__(self):
        import boto3

        self.boto3 = boto3
        self.seen = []
        self.bucket_name = "differential"
        self.keeps_files = "DIFFERENTIAL_FILES" in os.environ
        self._bucket = False
        self._s3 = None
        self._folder = None
        self._masks = []

    @property
    def s3(self):
        """A client."""
        if self._s3 is None:
            self._s3 = self.boto3.client("s3", region_name="us-east-1")
        return self._s3

    @property
    def bucket(self):
        """A bucket that exists."""
        if not self._bucket:
            self._bucket = True
            self.s3.create_bucket(Bucket=self.bucket_name)
        return self.bucket_name

    @property
    def folder(self):
        """A directory of this case's own."""
        if self._folder is None:
            self._folder = tempfile.mkdtemp(prefix="unlade-differential-")
            self.mask(self._folder)
        return self._folder

    def mask(self, text):
        """A text that differs by nature, wherever it stands in other texts."""
        self._masks.append(text)
        return text

    def put(self, key, body=b"x", **kwargs):
        """An object."""
        return self.s3.put_object(Bucket=self.bucket, Key=key, Body=body, **kwargs)

    def see(self, label, value):
        """Something that both have to see."""
        from observe import observe

        text = json.dumps([label, observe(value)], sort_keys=True)
        for number, mask in enumerate(self._masks):
            text = text.replace(mask, "<%d>" % number)
        self.seen.append(json.loads(text))
        return value

    def attempt(self, label, function, *args, **kwargs):
        """Calls something; sees its result, or its exception."""
        try:
            return self.see(label, function(*args, **kwargs))
        except Exception as error:
            self.see(label, error)
            return error

    def close(self):
        """Removes what the case left."""
        if self._folder is not None:
            shutil.rmtree(self._folder)


def run(function, arguments):
    """One case: what it saw, or why it could not."""
    trial = Trial()
    try:
        function(trial, *arguments)
        return {"seen": trial.seen}
    except BaseException:
        return {"seen": trial.seen, "broken": traceback.format_exc()}
    finally:
        trial.close()


def main():
    """Reads names, writes results."""
    mode = sys.argv[1]
    if mode == "stub":
        sys.path.insert(0, os.path.dirname(os.path.dirname(HERE)))
        from unlade_guest import finder

        finder.install()
    import boto3

    synthetic = "unlade_guest" in boto3.__file__
    assert synthetic == (mode == "stub"), boto3.__file__
    import registry

    cases = registry.load()
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print("ready", file=out, flush=True)
    for line in sys.stdin:
        faulthandler.dump_traceback_later(CASE_SECONDS_MAX, exit=True)
        function, arguments = cases[json.loads(line)]
        print(json.dumps(run(function, arguments)), file=out, flush=True)
        faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
