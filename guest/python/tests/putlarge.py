"""What a large PUT costs: stock boto3 against the stub over `unlade fn worker`, same store.

python putlarge.py [--mib 64] [--rounds 7] [--binary UNLADE]...

Each round every way puts the same file once. Printed are medians of seconds, of ratios to stock boto3
within a round, and of the worker its peak of memory. Several binaries are compared with each other.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "differential"))

import hosts  # noqa: E402
from conftest import BuiltIn  # noqa: E402

CHILD = """
import os, sys, time
if "UNLADE_CHANNEL_FD" in os.environ:
    sys.path.insert(0, %r)
    from unlade_guest import finder
    finder.install()
import boto3
s3 = boto3.client("s3", region_name="us-east-1")
for line in sys.stdin:
    with open(line.strip(), "rb") as file:
        cpu, begun = time.process_time(), time.perf_counter()
        s3.put_object(Bucket="large", Key="k", Body=file)
        print(time.perf_counter() - begun, time.process_time() - cpu, flush=True)
"""


class Way:
    """A process that puts files, and its worker, if it has one."""

    def __init__(self, name, endpoint, binary=None):
        self.name = name
        self.seconds, self.ratios, self.cpu = [], [], []
        env, keep = hosts.environment(endpoint), ()
        self.worker = None
        if binary is not None:
            os.environ["UNLADE_BIN"] = binary
            self.worker = hosts.Worker(endpoint)
            own = self.worker.channel()
            env["UNLADE_CHANNEL_FD"] = str(own.fileno())
            keep = (own.fileno(),)
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD % os.path.dirname(HERE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=env,
            pass_fds=keep,
            text=True,
        )
        if self.worker is not None:
            own.close()

    def put(self, path):
        """One PUT: how long it took."""
        self.process.stdin.write(path + "\n")
        self.process.stdin.flush()
        seconds, cpu = map(float, self.process.stdout.readline().split())
        return seconds, cpu

    def peak_mib(self):
        """The most memory that the worker has had."""
        with open("/proc/%d/status" % self.worker.process.pid) as status:
            for line in status:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) / 1024
        return 0.0

    def close(self):
        """Ends both."""
        self.process.stdin.close()
        hosts.stop(self.process)
        if self.worker is not None:
            self.worker.close()


def main():
    """Measures and prints."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--binary", action="append", default=[])
    arguments = parser.parse_args()
    binaries = arguments.binary or [hosts.binary()]
    if binaries == [None]:
        return print("skipped: unlade is not built: cargo build, or UNLADE_BIN")
    os.environ["UNLADE_BIN"] = binaries[0]
    store = BuiltIn()
    ways = []
    try:
        os.mkdir(os.path.join(store.root, "large"))
        ways.append(Way("stock", store.endpoint))
        ways += [Way(binary, store.endpoint, binary) for binary in binaries]
        with tempfile.NamedTemporaryFile() as file:
            file.write(os.urandom(1 << 20) * arguments.mib)
            file.flush()
            measure(ways, file.name, arguments.rounds)
    finally:
        for way in ways:
            way.close()
        store.close()
    for way in ways:
        line = "%-40s %.3f s, %.3f s of its processor, ratio %.2f" % (
            way.name,
            statistics.median(way.seconds),
            statistics.median(way.cpu),
            statistics.median(way.ratios),
        )
        print(line + (", worker's peak %.0f MiB" % way.peak if way.worker else ""))


def measure(ways, path, rounds):
    """Rounds, the first one not counted."""
    for number in range(rounds + 1):
        order = ways[number % len(ways) :] + ways[: number % len(ways)]
        took = {way: way.put(path) for way in order}
        for way in ways if number else []:
            seconds, cpu = took[way]
            way.seconds.append(seconds)
            way.cpu.append(cpu)
            way.ratios.append(seconds / took[ways[0]][0])
    for way in ways[1:]:
        way.peak = way.peak_mib()


if __name__ == "__main__":
    main()
