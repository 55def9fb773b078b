"""Processor time of the guest's thread for a call, its transport included: a JSON object a line.

    python tests/percall.py [CALLS]

The host is the tests' own, in another process, with objects in memory: its time is not counted.
Stock boto3's figure needs a server: set AWS_ENDPOINT_URL, and it is measured in the same run.
"""

import json
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from instances import PACKAGE, Store  # noqa: E402

KIB, MIB = 1 << 10, 1 << 20


def serve():
    """A host in a child process; the guest's end of the channel."""
    import socket

    import host

    guest, other = socket.socketpair()
    child = os.fork()
    if child == 0:
        guest.close()
        host.Session(other, Store()).run()
        os._exit(0)
    other.close()
    return guest, child


def measure(s3, calls):
    """Microseconds of this thread for each kind of call."""
    s3.put_object(Bucket="percall-bucket", Key="small", Body=b"x" * KIB)
    s3.put_object(Bucket="percall-bucket", Key="large", Body=b"x" * MIB)
    target = bytearray(MIB)
    body = b"x" * MIB
    kinds = {
        "get_1kib_us": lambda: s3.get_object(Bucket="percall-bucket", Key="small")["Body"].read(),
        "get_1mib_us": lambda: s3.get_object(Bucket="percall-bucket", Key="large")["Body"].read(),
        "get_1mib_into_us": lambda: s3.get_object(Bucket="percall-bucket", Key="large")[
            "Body"
        ].readinto(target),
        "put_1kib_us": lambda: s3.put_object(Bucket="percall-bucket", Key="o", Body=body[:KIB]),
        "put_1mib_us": lambda: s3.put_object(Bucket="percall-bucket", Key="o", Body=body),
    }
    out = {}
    for name, call in kinds.items():
        for _ in range(3):
            call()
        times = []
        for _ in range(calls):
            before = time.thread_time()
            call()
            times.append(time.thread_time() - before)
        out[name] = round(sorted(times)[calls // 2] * 1e6, 1)
    return out


def main():
    """Prints a line a mode."""
    calls = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    if "AWS_ENDPOINT_URL" in os.environ:
        import boto3

        stock = boto3.client("s3", region_name="us-east-1")
        stock.create_bucket(Bucket="percall-bucket")
        print(
            json.dumps(
                {"bench": "guest-percall", "mode": "stock", "metrics": measure(stock, calls)}
            )
        )
    guest, child = serve()
    os.environ["UNLADE_CHANNEL_FD"] = str(guest.fileno())
    sys.path.insert(0, PACKAGE)
    from unlade_guest.session import Session

    stub = Session(region_name="us-east-1").client("s3")
    print(json.dumps({"bench": "guest-percall", "mode": "stub", "metrics": measure(stub, calls)}))
    guest.close()
    os.waitpid(child, 0)


if __name__ == "__main__":
    main()
