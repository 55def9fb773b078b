"""All cases, and the files of the rule that are left out with their reasons."""

from . import (
    beyond,
    functions,
    left_out,
    messages,
    objects,
    secrets,
    servers,
    tables,
    vswarm,
    workflows,
)

CASES = (
    *tables.CASES,
    *objects.CASES,
    *messages.CASES,
    *secrets.CASES,
    *workflows.CASES,
    *functions.CASES,
    *beyond.CASES,
    *vswarm.CASES,
    *servers.CASES,
)
LEFT_OUT = left_out.LEFT_OUT
LEFT_OUT_OF_VSWARM = servers.LEFT_OUT
