"""What a client costs an instance, beside the bare interpreter: one JSON object a line.

    python tests/footprint.py [ROUNDS]

Modes are interleaved; figures are medians. `private_kib` is memory that no other
process shares, `cpu_ms` the processor time of the whole process.
"""

import json
import os
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.dirname(HERE)
STUB = (
    "import sys; sys.path.insert(0, %r)\nfrom unlade_guest import finder; finder.install()\n"
    % PACKAGE
)
USE = 'import boto3; s3 = boto3.client("s3", region_name="us-east-1"); s3.get_object\n'
MODES = {"bare": "", "stub": STUB + USE, "stock": USE}
MEASURE = """
found = {}
with open("/proc/self/smaps_rollup") as file:
    for line in file:
        name, _, value = line.partition(":")
        found[name] = value.split()[0]
private = sum(int(found[name]) for name in ("Private_Clean", "Private_Dirty"))
print(private, int(found["Rss"]))
"""


def measure(code):
    """Private memory, resident memory (KiB) and processor time (ms) of a process."""
    reader, writer = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-I", "-c", code + MEASURE], stdout=writer, stdin=subprocess.DEVNULL
    ) as process:
        os.close(writer)
        _, _, usage = os.wait4(process.pid, 0)
        process.returncode = 0
    with os.fdopen(reader) as file:
        private, resident = file.read().split()
    return int(private), int(resident), (usage.ru_utime + usage.ru_stime) * 1000


def main():
    """Prints a line a mode."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    seen = {mode: [] for mode in MODES}
    for mode, code in MODES.items():
        measure(code)
    for _ in range(rounds):
        for mode, code in MODES.items():
            seen[mode].append(measure(code))
    medians = {
        mode: [statistics.median(column) for column in zip(*values)]
        for mode, values in seen.items()
    }
    bare = medians["bare"]
    for mode, (private, resident, cpu) in medians.items():
        metrics = {
            "private_kib": private,
            "resident_kib": resident,
            "cpu_ms": round(cpu, 1),
            "private_over_bare_kib": private - bare[0],
            "resident_over_bare_kib": resident - bare[1],
            "cpu_over_bare_ms": round(cpu - bare[2], 1),
        }
        print(json.dumps({"bench": "guest-footprint", "mode": mode, "metrics": metrics}))


if __name__ == "__main__":
    main()
