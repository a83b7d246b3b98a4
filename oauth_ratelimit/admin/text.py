"""Values as text for people, in the zone of the operator."""

import re
from datetime import UTC, datetime, tzinfo

from markupsafe import Markup, escape

from oauth_ratelimit.config.notation import rate_text
from oauth_ratelimit.core.key import visible_name
from oauth_ratelimit.core.mode import Canary
from oauth_ratelimit.core.overrides import Counters, HistoryEntry
from oauth_ratelimit.core.statistics import OTHER_CLIENTS
from oauth_ratelimit.operations.format import canary_text, counted, duration, origin_text, percent_text, policy_text

_TIME = re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


class Texts:
    """What templates call for a text. Names of clients and users have their invisible characters escaped.

    Args:
        zone: Zone of the times.
        now_s: The present: a time of another day has its date.
    """

    counted = staticmethod(counted)
    duration = staticmethod(duration)
    name = staticmethod(visible_name)
    rate = staticmethod(rate_text)
    policy = staticmethod(policy_text)
    origin = staticmethod(origin_text)

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

    @staticmethod
    def number(value: float | None) -> str:
        if value is None:
            return "–"
        return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:,.1f}"

    @staticmethod
    def percent(share: float | None) -> str:
        return "–" if share is None else percent_text(share)

    @staticmethod
    def client(client_id: str) -> str:
        return "all others" if client_id == OTHER_CLIENTS else visible_name(client_id)

    @staticmethod
    def canary(canary: Canary | None) -> str:
        return canary_text(canary)


def change_text(entry: HistoryEntry) -> str:
    """Return an operator's change in words."""
    target, override = entry.target, entry.override
    owner = "everybody" if target.client_id is None else visible_name(target.client_id)
    if isinstance(target, Counters):
        return f"counters of {owner} set to zero"
    what = target.kind.value if target.limit_kind is None else f"{target.limit_kind.value} limit"
    if override is None:
        return f"override removed: {what} of {owner}"
    if override.mode is not None:
        share = "" if override.canary_percent is None else f", {override.canary_percent:g} % of the clients"
        return f"mode {override.mode.value}{share} for {owner}"
    if target.limit_kind is None:
        return f"{owner} trusted"
    return f"{what} of {owner}: {', '.join(map(policy_text, override.policies)) or 'none'}"
