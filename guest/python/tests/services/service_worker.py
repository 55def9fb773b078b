"""Runs cases and rows by their names, with whichever boto3 this process has; answers in JSON lines.

python service_worker.py stock|stub
"""

import faulthandler
import json
import os
import sys
import traceback

CASE_SECONDS_MAX = 100  # a case that hangs ends its worker, and says where
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "differential")]


class Trial:
    """The surroundings of a case, and the file of its observations."""

    def __init__(self):
        import boto3

        self.boto3 = boto3
        self.seen = []

    def client(self, service, **more):
        """A client."""
        return self.boto3.client(service, region_name="us-east-1", **more)

    def see(self, label, value):
        """Something that both have to see."""
        from service_observe import observe

        self.seen.append(json.loads(json.dumps([label, observe(value)], sort_keys=True)))
        return value

    def attempt(self, label, function, **given):
        """Calls something; sees its result, or its exception."""
        try:
            return self.see(label, function(**given))
        except Exception as error:
            self.see(label, error)
            return error


class Cases:
    """The work of this process: cases by their names, rows by `[service, name, real]`."""

    def __init__(self):
        import calls
        import service_cases
        from calls import rows

        self._cases, self._tables = service_cases.CASES, calls.load()
        self._rows, self._clients = rows, rows.Clients()

    def of(self, what):
        """A function of a trial."""
        if isinstance(what, str):
            return self._cases[what]
        service, name, real = what
        table = self._tables[service]
        return lambda trial: self._rows.run(trial, table, name, self._clients, real)


def run(function):
    """One case: what it saw, or why it could not."""
    trial = Trial()
    try:
        function(trial)
        return {"seen": trial.seen}
    except BaseException:
        return {"seen": trial.seen, "broken": traceback.format_exc()}


def main():
    """Reads names, writes results."""
    mode = sys.argv[1]
    if mode == "stub":
        sys.path.insert(0, os.path.dirname(os.path.dirname(HERE)))
        from unlade_guest import finder

        finder.install()
    import boto3

    assert ("unlade_guest" in boto3.__file__) == (mode == "stub"), boto3.__file__
    cases = Cases()
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print("ready", file=out, flush=True)
    for line in sys.stdin:
        faulthandler.dump_traceback_later(CASE_SECONDS_MAX, exit=True)
        print(json.dumps(run(cases.of(json.loads(line)))), file=out, flush=True)
        faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
