"""Regular expressions of texts that vary."""

UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
ISO_TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(\+00:00|Z)?"
LOG_HEAD = r"\[(INFO|ERROR)\]\\t" + ISO_TIME + r"\\t" + UUID
