"""Compares the result of Ceph's S3 tests with the expected failures, and counts.

    summary.py RESULT.xml EXPECTED.txt [LOG]

A line of EXPECTED is "PATTERN | CLASS": a regular expression for the whole name of a test, and the
class of its failure. The first line that matches counts. Exit status 1: a test failed that no line
names.
"""

import collections
import re
import sys
import xml.etree.ElementTree


def results(path):
    """Yields the name of each test, its result and the first line of its message."""
    for case in xml.etree.ElementTree.parse(path).iter("testcase"):
        kind, message = "passed", ""
        for child in case:
            if child.tag in ("failure", "error", "skipped"):
                kind = "skipped" if child.tag == "skipped" else "failed"
                message = (child.get("message") or "").splitlines()[:1]
                message = message[0] if message else ""
        yield case.get("name"), kind, message


def expected(path):
    lines = []
    with open(path) as file:
        for number, line in enumerate(file, 1):
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            pattern, separator, reason = line.partition(" | ")
            if not separator:
                sys.exit(f"{path}:{number}: a line is PATTERN | CLASS")
            lines.append((re.compile(pattern), reason.strip()))
    return lines


def main(result, expectations, log=None):
    lines = expected(expectations)
    counts, classes, surprises, record = collections.Counter(), {}, [], []
    for name, kind, message in results(result):
        counts[kind] += 1
        record.append(f"{kind}\t{name}\t{message}\n")
        if kind == "passed":
            continue
        reason = next((reason for pattern, reason in lines if pattern.fullmatch(name)), None)
        if kind == "skipped":
            reason = "skipped by the tests themselves"
        if reason is None:
            surprises.append((name, message))
        else:
            classes.setdefault(reason, []).append(name)
    if log:
        with open(log, "w") as file:
            file.writelines(sorted(record))
    total = sum(counts.values())
    print(f"{total} tests: {counts['passed']} passed, {counts['failed']} failed, "
          f"{counts['skipped']} skipped")
    for reason, names in sorted(classes.items(), key=lambda one: -len(one[1])):
        print(f"{len(names):5}  {reason}")
    for name, message in surprises:
        print(f"NOT EXPECTED  {name}: {message[:160]}")
    return 1 if surprises else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
