"""vSwarm's map-reduce, packaged as its Dockerfile for Lambda does: the driver invokes mappers and
reducers, which exchange pickled dictionaries by S3."""

import pickle

from case import Case, bucket

HERE = "benchmarks/map-reduce/"
SHARED = ("utils/tracing/python/tracing.py", "utils/storage/python/storage.py")
BUCKET = "storage-module-test"
# Mappers choose the reducer by Python's hash, which has to be one for all of them.
ENVIRONMENT = {"IS_LAMBDA": "yes", "PYTHONHASHSEED": "0"}
VARIES = tuple(
    "effects s3 %s objects * metadata %s" % (BUCKET, name)
    for name in ("processingtime", "memoryusage")
)
REDUCED = "artemiy/task/reducer/job_0/"


def _part(number):
    """Lines of a log, whose first and last are not counted."""
    lines = ["source,target,port,bytes"]
    for line in range(50):
        lines.append("10.0.0.%d,10.1.0.1,443,%d" % ((line * 7 + number) % 13, line + number))
    return "\n".join(lines + [""]).encode()


def _case(name, events, prepare, **more):
    return Case(
        HERE + name + "/main.py",
        "s3" if name != "driver" else "lambda s3",
        events,
        collection="vSwarm",
        parts=(HERE + name, *SHARED),
        alias=name,
        packages="vswarm",
        environment=ENVIRONMENT,
        prepare=prepare,
        **more,
    )


PARTS = bucket(BUCKET, {"artemiy/part-%05d" % number: _part(number) for number in range(4)})
JOB = {"srcBucket": BUCKET, "destBucket": BUCKET, "jobId": "0", "nReducers": 2}
MAPPER = _case(
    "mapper",
    ({**JOB, "mapperId": 1, "keys": "part-00001,part-00002"},),
    PARTS,
    shows="shuffle_1/map_1",
    varies=VARIES,
)
REDUCER = _case(
    "reducer",
    ({**JOB, "reducerId": 1, "keys": "one,two"},),
    bucket(
        BUCKET,
        {
            "one": pickle.dumps({"10.0.0.1": 1.5, "10.0.0.2": 2.0}),
            "two": pickle.dumps({"10.0.0.1": 0.25}),
        },
    ),
    shows="reducer_1",
    varies=VARIES,
)
DRIVER = _case(
    "driver",
    ({},),
    PARTS,
    callees=(MAPPER, REDUCER),
    awaits=(BUCKET, REDUCED, 2),
    shows="jobs done",
    varies=VARIES,
)
CASES = (MAPPER, REDUCER, DRIVER)
