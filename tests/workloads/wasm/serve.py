"""Serves `log-filter` from WebAssembly instances: another way of having many functions on a host.

    python serve.py

Each line of standard input is an event, as the function's; each is answered by a line of JSON. The
instance has memory and code only: the host, this process, gets and puts the objects with boto3. An
event with `"keep": true` leaves its instance alive, so that its memory can be measured.
"""

import json
import os
import sys
from urllib.parse import unquote_plus

import boto3
import wasmtime

HERE = os.path.dirname(os.path.abspath(__file__))
PAGE_BYTES = 65536


class Filter:
    """An instance."""

    def __init__(self, engine, module):
        self._store = wasmtime.Store(engine)
        exports = wasmtime.Instance(self._store, module, []).exports(self._store)
        self._memory, self._filter = exports["memory"], exports["filter"]

    def run(self, octets):
        """The bytes of the lines that are kept."""
        at = PAGE_BYTES
        due = at + 2 * len(octets)
        have = self._memory.data_len(self._store)
        if have < due:
            self._memory.grow(self._store, -(-(due - have) // PAGE_BYTES))
        self._memory.write(self._store, octets, at)
        out = at + len(octets)
        kept = self._filter(self._store, at, len(octets), out)
        return bytes(self._memory.read(self._store, out, out + kept))


def main():
    """The command."""
    engine = wasmtime.Engine()
    with open(os.path.join(HERE, "log_filter.wat"), encoding="utf-8") as file:
        module = wasmtime.Module(engine, file.read())
    s3 = boto3.client("s3")
    kept = []
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        event = json.loads(line)
        source, output = event["Records"][0]["s3"], event["output"]
        bucket, key = source["bucket"]["name"], unquote_plus(source["object"]["key"])
        instance = Filter(engine, module)
        result = instance.run(s3.get_object(Bucket=bucket, Key=key)["Body"].read())
        s3.put_object(Bucket=output["bucket"], Key=output["key"], Body=result)
        if event.get("keep"):
            kept.append(instance)
        print(json.dumps({"bytes": len(result), "kept": len(kept)}), flush=True)


if __name__ == "__main__":
    main()
