"""Compares the results of MinIO's mint with the expected failures, and counts them by suite.

    mint_summary.py EXPECTED.txt LOGS SUITE...

LOGS/SUITE.json has the results of a suite: a JSON object a line, with "function", "args", "status",
"alert", "message" and "error". EXPECTED has lines of two kinds:

    SUITE | PATTERN | CLASS       a failure with this regular expression in "NAME FUNCTION ARGS ERROR" may
                                  happen; the first line that matches counts
    SUITE | at least | COUNT      so many tests pass, also if the suite ends at its first failure

A test that fails several times with the same arguments counts once. Exit status 1: a test failed that no line names, or too few passed.
"""

import collections
import json
import os
import re
import sys

KINDS = {"pass": "passed", "fail": "failed", "na": "not applicable", "ignored": "not applicable"}
TOTAL = "all"


def results(path):
    """Yields kind and description of each test. Other lines of the output are left out."""
    failed = set()
    if not os.path.exists(path):
        return
    with open(path, errors="replace") as file:
        for line in file:
            try:
                found = json.loads(line)
            except ValueError:
                continue
            kind = KINDS.get(str(found.get("status", "")).lower()) if isinstance(found, dict) else None
            if not kind:
                continue
            one = " ".join(str(found.get(key, "")) for key in ("name", "function", "args"))
            why = " ".join(str(found[key]) for key in ("alert", "message", "error") if found.get(key))
            if kind == "failed" and one in failed:
                continue
            if kind == "failed":
                failed.add(one)
            yield kind, " ".join(f"{one} {why}".split())


def expected(path):
    """Returns the lines with patterns, and the least number of passes of each suite."""
    lines, least = [], {}
    with open(path) as file:
        for number, line in enumerate(file, 1):
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            parts = [part.strip() for part in line.split(" | ")]
            if len(parts) != 3:
                sys.exit(f"{path}:{number}: a line is SUITE | PATTERN | CLASS")
            if parts[1] == "at least":
                least[parts[0]] = int(parts[2])
            else:
                lines.append((parts[0], re.compile(parts[1]), parts[2]))
    return lines, least


def main(expectations, logs, *suites):
    lines, least = expected(expectations)
    counts, classes, surprises = collections.defaultdict(collections.Counter), collections.Counter(), []
    for suite in suites:
        for kind, text in results(os.path.join(logs, f"{suite}.json")):
            counts[suite][kind] += 1
            counts[TOTAL][kind] += 1
            if kind != "failed":
                continue
            reasons = (reason for own, pattern, reason in lines if own == suite and pattern.search(text))
            reason = next(reasons, None)
            if reason is None:
                surprises.append((suite, text))
            else:
                classes[reason] += 1
        if counts[suite]["passed"] < least.get(suite, 1):
            surprises.append((suite, f"fewer than {least.get(suite, 1)} tests passed"))
    for suite in (*suites, TOTAL):
        found = counts[suite]
        print(f"{suite:16} {found['passed']:4} passed, {found['failed']} failed, "
              f"{found['not applicable']} not applicable")
    for reason, count in classes.most_common():
        print(f"{count:5}  {reason}")
    for suite, text in surprises:
        print(f"NOT EXPECTED  {suite}: {text[:400]}")
    return 1 if surprises else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
