"""Runs functions of others unmodified: outside, under `unlade fn serve` in mode `stock`, and in the
default mode, and compares the three.

    run.py --unlade FILE --repositories DIR --packages DIR [--table FILE] [--log FILE] [TEXT...]

Cases whose path has one of the texts are run, else all. Exit status 1: a case differs or fails, or a
file that the rule takes is in no list.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import traceback

import cases
import collection
from cloud import Cloud, seen, until
from compare import differences, masked
from database import Database
from ways import Failed, Gateway, Mode, Outside, manifest

HERE = os.path.dirname(os.path.abspath(__file__))
SHOWN_MAX = 6
SETTLE_SECONDS_MAX = 60


class Runner:
    """The servers, the ways, and the code of the collections."""

    def __init__(self, cloud, gateway, repositories, scratch, packages):
        self.cloud = cloud
        self._gateway = gateway
        self._repositories = repositories
        self._scratch = scratch
        self._packages = packages
        self._code = {}
        self.ways = [Outside(gateway), Mode(gateway, "stock"), Mode(gateway, "offload")]

    def code_of(self, case):
        """The directory with a case's code, which is unpacked once."""
        if case.path not in self._code:
            place = os.path.join(self._scratch, "code", str(len(self._code)))
            self._code[case.path] = collection.unpack(self._repositories, case, place)
        return self._code[case.path]

    def content_of(self, content):
        """The bytes of a file of a collection."""
        return self._repositories[content.collection].content(content.path)

    def packages_of(self, case):
        """Directories of packages beside boto3's."""
        return [os.path.join(self._packages, case.packages)] if case.packages else []

    def _deploy(self, callee, way, words):
        """Deploys a function that a case invokes; its name."""
        if isinstance(callee, str):
            here = os.path.join(HERE, "recorder")
            self._gateway.deploy(callee, here, 'handler = "app.handler"\n')
            return callee
        mode = "offload" if way.name == "offload" else "stock"
        text = manifest(callee, words, mode, self._gateway, self.packages_of(callee))
        self._gateway.deploy(callee.alias, self.code_of(callee), text)
        return callee.alias

    def result_of(self, way, case):
        """The results of a case, and the content of the server afterwards."""
        words = self.cloud.prepare(case, self.content_of)
        code = self.code_of(case)
        names = []
        try:
            for callee in case.callees:
                names.append(self._deploy(callee, way, words))
            if case.requests:
                self.cloud.record()
            results, log = way.run(case, code, words, self.packages_of(case))
            if case.awaits:
                until("objects %r" % (case.awaits,), self._settled(case), SETTLE_SECONDS_MAX)
        finally:
            for name in names:
                self._gateway.remove(name)
        return self._seen(case, results, log)

    def _settled(self, case):
        bucket, prefix, number = case.awaits
        s3 = self.cloud.client("s3")
        return lambda: s3.list_objects_v2(Bucket=bucket, Prefix=prefix)["KeyCount"] >= number

    def _seen(self, case, results, log):
        out = {"results": results, "effects": seen(self.cloud, case)}
        if case.requests:
            out["effects"]["requests"] = self.cloud.recorded(case.requests)
        if case.says:
            out["log"] = log
        return out


def check(case, result, way):
    """Says what is wrong with a result by itself; the handler must have done its work."""
    found = []
    text = json.dumps(result, ensure_ascii=False)
    shows = case.fault_shows if case.fault_shows and way == "offload" else case.shows
    if shows not in text:
        found.append("the result does not show %r: %.600s" % (shows, text))
    errors = [one["error"] for one in result["results"] if "error" in one]
    types = {error["errorType"] for error in errors}
    if types - {case.fails}:
        found.append("the handler fails: %.300s" % json.dumps(errors))
    if case.fails and case.fails not in types:
        found.append("the handler does not raise %s" % case.fails)
    return found


def run_case(case, runner):
    """The faults of a case, by way; those of the comparison are with the way that differs."""
    results, faults = {}, {}
    for way in runner.ways:
        try:
            result = runner.result_of(way, case)
            wrong = check(case, result, way.name)
            results[way.name] = masked(result, case)
        except (Failed, ValueError) as error:
            wrong = [str(error)]
        except Exception:
            wrong = [traceback.format_exc()]
        if wrong:
            # A result that does not show what it has to is no known difference.
            faults[way.name + " itself" if case.fault_shows else way.name] = wrong
    for name in ("stock", "offload"):
        if name in results and "outside" in results:
            found = list(differences(results["outside"], results[name]))
            shown = ["%s: outside %.300r, %s %.300r" % (at, a, name, b) for at, a, b in found]
            if shown:
                faults.setdefault(name, []).extend(shown[:SHOWN_MAX])
    return faults


def verdict(case, faults):
    """A word for the result of a case."""
    if case.fault and set(faults) <= {"offload"}:
        return "known" if faults else "mended"
    if not faults:
        return "ok"
    return "sample" if "outside" in faults else "FAULT"


def _is_by_rule(case):
    return case.collection == "serverless-patterns" and not case.beyond


def accounts_for(taken):
    """Files of the rule that are in no list, and lists' files that the rule does not take."""
    run = {case.path for case in cases.CASES if _is_by_rule(case)}
    left_out = set(cases.LEFT_OUT)
    return sorted((set(taken) ^ (run | left_out)) | (run & left_out))


def write_table(path, rows):
    """A table in Markdown: sample, services, default, stock, remark."""
    lines = ["| sample | services | default | stock | remark |", "|---|---|---|---|---|"]
    for case, faults in rows:
        same = ["differs" if name in faults else "same" for name in ("offload", "stock")]
        name = "`%s`" % case.path + ("" if case.handler != "get" else " (`get`)")
        raises = "raises `%s`, as it has to" % case.fails if case.fails else ""
        remark = case.fault or case.remark or raises
        services = case.services.replace(" ", ", ")
        lines.append("| %s | %s | %s | %s | %s |" % (name, services, *same, remark))
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


def report(case, faults):
    """Prints the verdict of a case, and why."""
    print("%-6s %s %s" % (verdict(case, faults), case.path, case.handler), flush=True)
    for name, lines in faults.items() if verdict(case, faults) != "known" else ():
        for line in lines:
            print("         %s: %s" % (name, line), flush=True)


def run_all(chosen, arguments, repositories, scratch):
    """Runs cases; each with its faults."""
    rows = []
    lists = sorted({case.packages for case in chosen if case.packages})
    packages = [os.path.join(arguments.packages, name) for name in lists]
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(open(os.path.join(scratch, "servers.log"), "w", encoding="utf-8"))
        cloud = Cloud(log, scratch)
        stack.callback(cloud.close)
        if any(case.documents for case in chosen):
            cloud.database = Database(arguments.database, log, scratch)
            stack.callback(cloud.database.close)
        gateway = Gateway(arguments.unlade, cloud, scratch, packages)
        stack.callback(keep_log, gateway, arguments.log)
        stack.callback(gateway.close)
        runner = Runner(cloud, gateway, repositories, scratch, arguments.packages)
        for case in chosen:
            faults = run_case(case, runner)
            rows.append((case, faults))
            report(case, faults)
    return rows


def keep_log(gateway, path):
    """Writes the gateway's log to a file, if there is to be one."""
    if path:
        with open(path, "w", encoding="utf-8") as file:
            file.write(gateway.log())


def main():
    """The command."""
    parser = argparse.ArgumentParser(description="Runs functions of others unmodified.")
    parser.add_argument("--unlade", required=True, metavar="FILE", help="the program")
    parser.add_argument("--repositories", required=True, metavar="DIR", help="with the collections")
    parser.add_argument("--packages", required=True, metavar="DIR", help="of lists of packages")
    parser.add_argument("--database", metavar="FILE", help="FerretDB; without it, its cases are left out")
    parser.add_argument("--table", metavar="FILE", help="write the results as Markdown")
    parser.add_argument("--log", metavar="FILE", help="keep the gateway's log")
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="cases whose path has one")
    arguments = parser.parse_args()
    repositories = {
        name: collection.Repository(os.path.join(arguments.repositories, name), commit)
        for name, commit in collection.COMMITS.items()
    }
    taken, left = collection.survey(repositories["serverless-patterns"])
    unlisted = accounts_for(taken)
    wanted = [
        case
        for case in sorted(cases.CASES, key=lambda case: (case.path, case.handler))
        if not arguments.texts or any(text in case.path for text in arguments.texts)
    ]
    skipped = [case for case in wanted if case.documents and not arguments.database]
    wanted = [case for case in wanted if case not in skipped]
    # The servers are ended by `finally`.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    scratch = tempfile.mkdtemp(prefix="samples-")
    os.chmod(scratch, 0o755)
    try:
        rows = run_all(wanted, arguments, repositories, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if arguments.table:
        write_table(arguments.table, rows)
    for case in skipped:
        print("skipped: %s: there is no FerretDB" % case.path)
    return summary(rows, taken, left, unlisted)


def summary(rows, taken, left, unlisted):
    """Prints the numbers; the exit status."""
    words = [verdict(case, faults) for case, faults in rows]
    handlers = sum(left[why] for why in left if why.startswith("a handler")) + len(taken)
    print("\n%d Python files have a handler; the rule takes %d" % (handlers, len(taken)))
    for why, number in sorted(left.items(), key=lambda one: -one[1]):
        print("%6d  not taken: %s" % (number, why))
    for path, why in [*sorted(cases.LEFT_OUT.items()), *sorted(cases.LEFT_OUT_OF_VSWARM.items())]:
        print("        left out: %s: %s" % (path, why))
    for path in unlisted:
        print("NOT EXPECTED  %s: in no list, or in both, or not taken by the rule" % path)
    names = (
        ("ok", "passed: the three are the same"),
        ("known", "differ as is known"),
        ("FAULT", "differ"),
        ("sample", "fail outside, too"),
        ("mended", "no longer differ: remove their `fault`"),
    )
    print("%d cases of %d files" % (len(rows), len({case.path for case, _ in rows})))
    for word, meaning in names:
        if words.count(word) or word == "ok":
            print("%6d  %s" % (words.count(word), meaning))
    print("%6d  files of the rule left out" % len(cases.LEFT_OUT))
    unexpected = len(words) - words.count("ok") - words.count("known")
    return 1 if unexpected or unlisted else 0


if __name__ == "__main__":
    sys.exit(main())
