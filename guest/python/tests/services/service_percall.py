"""Processor time of a GetItem in a function's process: stock boto3, and through the cut.

python tests/services/service_percall.py [CALLS] [ROUNDS]      a JSON object a line

Two processes, one of each kind, take turns: each round has CALLS calls of one, then of the other.
The time is that of the process (all threads, user and system); the server and the worker are other
processes. The server is `scripted.py`, over plain HTTP: stock boto3's TLS is not in its figure.
"""

import json
import os
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)


def child(mode):
    """Answers each line, a number of calls, with their seconds of processor time."""
    if mode == "stub":
        sys.path.insert(0, os.path.dirname(os.path.dirname(HERE)))
        from unlade_guest import finder

        finder.install()
    before = time.process_time()
    import boto3

    db = boto3.client("dynamodb", region_name="us-east-1")
    print(time.process_time() - before, flush=True)
    key = {"id": {"S": "a"}}
    for line in sys.stdin:
        begin = time.process_time()
        for _ in range(int(line)):
            db.get_item(TableName="t-0", Key=key)
        print(time.process_time() - begin, flush=True)


def main():
    """Measures."""
    from service_hosts import Scripted, configured
    from hosts import Worker, environment

    calls, rounds = (int(n) for n in (sys.argv[1:] + ["200", "15"][len(sys.argv) - 1 :]))
    server = Scripted()
    worker = Worker("http://127.0.0.1:1", more=configured(server.endpoint, ["dynamodb"]))
    own = worker.channel()
    env = environment()
    env["UNLADE_CHANNEL_FD"] = str(own.fileno())
    modes = {"stock": environment(server.endpoint), "stub": env}
    running = {
        mode: subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), "--child", mode],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=around,
            pass_fds=[own.fileno()],
            text=True,
        )
        for mode, around in modes.items()
    }
    starts = {mode: float(process.stdout.readline()) for mode, process in running.items()}
    times = {mode: [] for mode in modes}
    for round_ in range(rounds + 1):
        for mode, process in running.items():
            process.stdin.write("%d\n" % calls)
            process.stdin.flush()
            taken = float(process.stdout.readline()) / calls * 1e6
            if round_:  # the first one warms up
                times[mode].append(taken)
    medians = {mode: statistics.median(found) for mode, found in times.items()}
    for mode, found in times.items():
        figures = {"get_item_cpu_us": round(medians[mode], 1), "start_cpu_ms": starts[mode] * 1e3}
        figures.update(least_us=round(min(found), 1), most_us=round(max(found), 1))
        print(json.dumps({"bench": "services-percall", "mode": mode, "metrics": figures}))
    ratio = round(medians["stub"] / medians["stock"], 3)
    metrics = {"get_item_cpu": ratio, "start_cpu": round(starts["stub"] / starts["stock"], 3)}
    print(json.dumps({"bench": "services-percall", "mode": "ratio", "metrics": metrics}))
    for process in running.values():
        process.stdin.close()
        process.wait()
    worker.close()
    server.close()


if __name__ == "__main__":
    child(sys.argv[2]) if sys.argv[1:2] == ["--child"] else main()
