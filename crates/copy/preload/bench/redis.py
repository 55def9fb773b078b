#!/usr/bin/env python3
"""Throughput and processor time of redis-server, with libunlade_preload and without it.

Both servers run all the time; redis-benchmark runs against one and then the other, in alternating
order. Ratios are medians over rounds: rate (more is better) and processor time of the server a
request (less is better), with the library to without it. Needs redis-server and redis-benchmark.
A third server has the library switched off (`off`): it shows the cost of the library itself and the
noise of the machine.
"""

import argparse
import os
import pathlib
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[4]
NAMES = ("plain", "preload", "off")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def start(name: str, library: pathlib.Path, options: str, directory: str) -> tuple[int, subprocess.Popen]:
    port = free_port()
    environment = dict(os.environ)
    if name != "plain":
        environment["LD_PRELOAD"] = str(library)
        counts = f"statistics={directory}/{name}"
        environment["UNLADE_PRELOAD_OPTIONS"] = f"enabled=0:{counts}" if name == "off" else f"{options}:{counts}"
    command = ["redis-server", "--port", str(port), "--save", "", "--loglevel", "warning", "--dir", directory]
    return port, subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)


def processor_ns(process: int) -> int:
    """Time of all threads of a process on processors."""
    tasks = pathlib.Path(f"/proc/{process}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)


def requests(port: int, test: str, size: int, count: int, arguments: argparse.Namespace) -> float:
    """Runs redis-benchmark; returns requests a second."""
    command = ["redis-benchmark", "-p", str(port), "-t", test, "-d", str(size), "-n", str(count)]
    command += ["-r", str(arguments.keys), "-c", str(arguments.clients), "--csv"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rates = re.findall(r'^"[^"]+","([0-9.]+)"', output, re.MULTILINE)
    if not rates:
        sys.exit(f"redis-benchmark gave no rate: {output}")
    return float(rates[-1])


def measure(servers: dict, test: str, size: int, arguments: argparse.Namespace) -> None:
    rate = 0.0
    for port, _ in servers.values():
        requests(port, "set", size, arguments.keys * 4, arguments)
        rate = requests(port, test, size, 1500, arguments)
    count = max(300, int(rate * arguments.seconds))
    results: dict[str, list[tuple[float, float]]] = {name: [] for name in servers}
    for turn in range(arguments.rounds):
        order = list(servers.items())
        for name, (port, process) in order if turn % 2 == 0 else reversed(order):
            before = processor_ns(process.pid)
            rate = requests(port, test, size, count, arguments)
            results[name].append((rate, (processor_ns(process.pid) - before) / count))
    plain = results["plain"]
    line = f"{test} {size:>8} B  plain {statistics.median(r for r, _ in plain):>8.0f}/s"
    line += f" {statistics.median(c for _, c in plain) / 1000:>7.1f} us"
    for name in NAMES[1:]:
        pairs = list(zip(results[name], plain))
        rates = statistics.median(a[0] / b[0] for a, b in pairs)
        costs = statistics.median(a[1] / b[1] for a, b in pairs)
        line += f"   {name}: rate x{rates:.3f} cpu x{costs:.3f}"
    print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=pathlib.Path, default=ROOT / "target/release/libunlade_preload.so")
    parser.add_argument("--sizes", default="64,65536,262144,524288,1048576", help="bytes, by commas")
    parser.add_argument("--tests", default="set,get", help="tests of redis-benchmark, by commas")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.25, help="of one run")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--keys", type=int, default=50)
    parser.add_argument("--options", default="", help="UNLADE_PRELOAD_OPTIONS")
    arguments = parser.parse_args()
    if not arguments.library.exists():
        sys.exit(f"{arguments.library} is missing: cargo build --release -p unlade-copy-preload")
    with tempfile.TemporaryDirectory() as directory:
        servers = {name: start(name, arguments.library, arguments.options, directory) for name in NAMES}
        try:
            time.sleep(0.7)
            for size in arguments.sizes.split(","):
                for test in arguments.tests.split(","):
                    measure(servers, test, int(size), arguments)
        finally:
            for _, process in servers.values():
                process.terminate()
            for _, process in servers.values():
                process.wait()
        for path in sorted(pathlib.Path(directory).glob("preload.*")):
            print(path.read_text(), end="")


if __name__ == "__main__":
    main()
