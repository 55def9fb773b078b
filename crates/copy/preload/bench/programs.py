#!/usr/bin/env python3
"""Processor time of programs that the library should leave alone: tar, sqlite3, SQLite's speedtest1, nginx.

Interleaved runs with libunlade_preload and without it. Prints the median of the ratios of processor
time (less is better) of each pair. nginx is driven by ab from package apache2-utils. speedtest1 is built
from Debian's source, which is fetched once.
"""

import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[4]
LIBRARY = ROOT / "target/release/libunlade_preload.so"
ROUNDS = 21
SQL = """create table t(a integer primary key, b text, c blob);
with recursive n(i) as (select 1 union all select i + 1 from n where i < 60000)
insert into t select i, hex(i * 7919), zeroblob(i % 400) from n;
create index i on t(b); select count(*) from t where b like '3%';
update t set b = b || a where a % 3 = 0; delete from t where a % 5 = 0; vacuum;
insert into t select a + 100000, b, zeroblob(300000) from t limit 40; select sum(length(c)) from t;"""


def environment(is_on: bool) -> dict:
    return {**os.environ, "LD_PRELOAD": str(LIBRARY)} if is_on else dict(os.environ)


def once(command: list[str], is_on: bool) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env=environment(is_on), stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def report(name: str, pairs: list[tuple[float, float]]) -> None:
    ratio = statistics.median(on / off for on, off in pairs)
    print(f"{name:24} plain {statistics.median(off for _, off in pairs) * 1000:8.1f} ms   cpu x{ratio:.3f}", flush=True)


def compare(name: str, command: list[str]) -> None:
    pairs = []
    for turn in range(ROUNDS):
        on_first = turn % 2 == 0
        first, second = once(command, on_first), once(command, not on_first)
        pairs.append((first, second) if on_first else (second, first))
    report(name, pairs)


def nginx(directory: pathlib.Path, size: int) -> None:
    (directory / "file").write_bytes(os.urandom(size))
    servers = []
    for is_on, port in ((True, 18080), (False, 18081)):
        configuration = directory / f"{port}.conf"
        configuration.write_text(
            f"daemon off; master_process off; pid {directory}/{port}.pid; error_log {directory}/error;\n"
            f"events {{}} http {{ access_log off; sendfile off; server {{ listen 127.0.0.1:{port}; root {directory}; }} }}\n"
        )
        command = ["nginx", "-c", str(configuration)]
        server = subprocess.Popen(command, env=environment(is_on), stderr=subprocess.DEVNULL)
        servers.append((is_on, port, server))
    time.sleep(0.7)

    def run(port: int, server: subprocess.Popen) -> float:
        schedstat = pathlib.Path(f"/proc/{server.pid}/schedstat")
        before = int(schedstat.read_text().split()[0])
        command = ["ab", "-q", "-k", "-n", "1500", "-c", "4", f"http://127.0.0.1:{port}/file"]
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
        return (int(schedstat.read_text().split()[0]) - before) / 1e9

    pairs = []
    try:
        for turn in range(ROUNDS):
            order = servers if turn % 2 == 0 else servers[::-1]
            times = {is_on: run(port, server) for is_on, port, server in order}
            pairs.append((times[True], times[False]))
    finally:
        for _, _, server in servers:
            server.terminate()
            server.wait()
    report(f"nginx, {size} B", pairs)


def build_speedtest(directory: pathlib.Path) -> pathlib.Path:
    source = subprocess.check_output([ROOT / "scripts/debian-source", "sqlite3"], text=True).strip()
    build = directory / "sqlite"
    shutil.copytree(source, build, symlinks=True)
    for command in (["./configure", "--disable-tcl"], ["make", "sqlite3.c"], ["make", "speedtest1"]):
        subprocess.run(command, cwd=build, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return build / "speedtest1"


def main() -> None:
    if not LIBRARY.exists():
        sys.exit(f"{LIBRARY} is missing: cargo build --release -p unlade-copy-preload")
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        directory.chmod(0o755)
        (directory / "data").mkdir()
        for number in range(200):
            (directory / "data" / str(number)).write_bytes(os.urandom(200_000))
        compare("tar", ["tar", "-cf", str(directory / "archive"), "-C", name, "data"])
        compare("sqlite3", ["sqlite3", ":memory:", SQL])
        speedtest = build_speedtest(directory)
        compare("sqlite3, speedtest1", [str(speedtest), "--size", "20", str(directory / "database")])
        for size in (1000, 100_000):
            nginx(directory, size)


if __name__ == "__main__":
    main()
