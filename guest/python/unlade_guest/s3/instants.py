"""Instants that callers write as numbers or texts."""

from _datetime import datetime, timedelta, timezone

MONTHS = "jan feb mar apr may jun jul aug sep oct nov dec".split()


def parse(value):
    """The aware datetime of seconds since 1970, an ISO 8601 text or an HTTP date.

    Raises ValueError or TypeError where it is none of these.
    """
    if isinstance(value, (int, float)):
        return datetime.fromtimestamp(value, timezone.utc)
    if not isinstance(value, str):
        raise TypeError("not an instant")
    text = value.strip()
    try:
        return datetime.fromtimestamp(float(text), timezone.utc)
    except ValueError:
        return _http(text) if "," in text else _iso(text)


def _zone(text):
    if text in ("", "Z", "z", "GMT", "UTC"):
        return timezone.utc
    sign = {"+": 1, "-": -1}[text[0]]
    digits = text[1:].replace(":", "")
    return timezone(sign * timedelta(hours=int(digits[:2]), minutes=int(digits[2:] or 0)))


def _iso(text):
    date, _, time = text.replace("T", " ").partition(" ")
    if not time:
        return datetime.fromisoformat(date).astimezone()
    at = 8
    while at < len(time) and time[at] in ".0123456789":
        at += 1
    moment = datetime.fromisoformat("%s %s" % (date, time[:8]))
    if time[8:at]:
        moment += timedelta(seconds=float("0" + time[8:at]))
    zone = time[at:].strip()
    return moment.astimezone() if not zone else moment.replace(tzinfo=_zone(zone))


def _http(text):
    day, month, year, time, zone = text.partition(",")[2].replace("-", " ").split()
    hour, minute, second = map(int, time.split(":"))
    number = MONTHS.index(month[:3].lower()) + 1
    moment = datetime(int(year), number, int(day), hour, minute, second)
    return moment.replace(tzinfo=_zone(zone))
