"""Values as text for people, in the zone of the operator."""

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo

from markupsafe import Markup, escape

from oauth_ratelimit.admin.cache import Params, whole
from oauth_ratelimit.core.key import visible_name
from oauth_ratelimit.operations.format import change_text, number, override_text, percent_text, utc_time

MAX_OFFSET_MIN = 14 * 60  # of any zone
_TIME = re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


class Texts:
    """Functions that templates call for a text. Names of clients and users have their invisible characters escaped."""

    name = staticmethod(visible_name)
    change = staticmethod(lambda entry: visible_name(change_text(entry)))
    override = staticmethod(lambda override: visible_name(override_text(override)))
    number = staticmethod(lambda value: "–" if value is None else number(value))
    percent = staticmethod(lambda share: "–" if share is None else percent_text(share))

    def __init__(self, zone: tzinfo, now_s: float) -> None:
        self._zone = zone
        self._today = datetime.fromtimestamp(now_s, zone).date()

    def time(self, at_s: float | None) -> Markup:
        """Return a time such as ``15:01:20 UTC``, with the date unless it is today."""
        if at_s is None:
            return Markup("–")
        at = datetime.fromtimestamp(at_s, self._zone)
        day = "" if at.date() == self._today else f"{at:%a} {at.day} {at:%b} "
        return Markup('<time datetime="{}">{}{:%H:%M:%S} {}</time>').format(
            datetime.fromtimestamp(at_s, UTC).isoformat(timespec="seconds"), day, at, at.tzname() or ""
        )

    def sentence(self, text: str) -> Markup:
        """Return a text whose times, as ``utc_time`` writes them, are in the zone."""
        return Markup(
            _TIME.sub(lambda found: self.time(datetime.fromisoformat(found[0]).timestamp()), str(escape(text)))
        )


def when_text(since_s: float, *, is_full: bool) -> str:
    return "In the last full minute" if is_full else f"Since {utc_time(since_s)}"


def zone_of(params: Params) -> tzinfo:
    """Return the time zone that is some minutes ahead of UTC."""
    offset = whole(params, "utc_offset", 0, least=-MAX_OFFSET_MIN, most=MAX_OFFSET_MIN)
    return timezone(timedelta(minutes=offset)) if offset else UTC
