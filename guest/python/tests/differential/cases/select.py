"""SelectObjectContent: SQL over an object, and its stream of events."""

from registry import case

ROWS = b"name,number\nann,1\nbob,22\ncleo,333\n" * 50
CSV = {"CSV": {"FileHeaderInfo": "USE"}}


def select(t, expression, **more):
    """The answer."""
    given = {"InputSerialization": CSV, "OutputSerialization": {"JSON": {}}, **more}
    return t.s3.select_object_content(
        Bucket=t.bucket, Key="rows", Expression=expression, ExpressionType="SQL", **given
    )


@case(
    "SELECT * FROM s3object",
    "SELECT s.name FROM s3object s WHERE s.number = '22'",
    "SELECT COUNT(*) FROM s3object",
)
def events(t, expression):
    t.put("rows", ROWS)
    found = select(t, expression)
    t.see("class", type(found["Payload"]).__name__)
    t.see("events", list(found["Payload"]))
    t.see("again", list(found.pop("Payload")))
    t.see("answer", found)


@case(
    {"OutputSerialization": {"CSV": {"FieldDelimiter": "|"}}},
    {"OutputSerialization": {"JSON": {"RecordDelimiter": ",\n"}}},
    {"InputSerialization": {"CSV": {"FileHeaderInfo": "NONE"}, "CompressionType": "NONE"}},
)
def forms(t, more):
    t.put("rows", ROWS)
    t.see("events", list(select(t, "SELECT * FROM s3object", **more)["Payload"]))


@case()
def records(t):
    """As functions read them."""
    t.put("rows", ROWS)
    payload = select(t, "SELECT s.name FROM s3object s")["Payload"]
    text = b"".join(event["Records"]["Payload"] for event in payload if "Records" in event)
    t.see("records", text)
    payload = select(t, "SELECT s.name FROM s3object s")["Payload"]
    t.attempt("close", payload.close)


@case()
def failures(t):
    t.attempt("no bucket", t.s3.select_object_content, Bucket="nowhere", Key="rows")
    t.attempt("no key", select, t, "SELECT * FROM s3object")
    t.put("rows", ROWS)
    t.attempt("a wrong kind", select, t, 5)
    t.attempt("a wrong member", select, t, "SELECT 1", ScanRange={"Begin": 1})
