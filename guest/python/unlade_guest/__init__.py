"""Object storage for functions without an SDK: calls go to the host over shared memory.

The way of a call: `synthetic/` (what `import boto3` finds) -> `session.py` -> `s3/client.py` ->
`s3/validate.py` and `s3/shape.py` -> `calls.py` -> `channel.py` with `region.py` -> the host, and
back as a result, an error (`errors.py`) or a body (`body.py`). The protocol is
docs/guest-protocol.md.
"""
