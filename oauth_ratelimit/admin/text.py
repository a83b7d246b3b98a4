"""Values as text for people, in the zone of the operator."""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import NamedTuple

from markupsafe import Markup, escape

from oauth_ratelimit.admin.cache import Params, whole
from oauth_ratelimit.config.notation import rate_text
from oauth_ratelimit.core.key import visible_name
from oauth_ratelimit.core.overrides import Counters, HistoryEntry, Override, Target
from oauth_ratelimit.core.statistics import ENDPOINT, GUARD, Denials
from oauth_ratelimit.operations.format import duration, number, percent_text, policy_text, utc_time

NOTED_SHARE = 0.05  # of the denials; a limit with fewer is not named
CAUSE_S = 600  # a change so long before the first denial may be its cause
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


class Mark(NamedTuple):
    """A moment at which requests may begin to be decided otherwise, or instances began or ended."""

    at_s: float
    text: str  # what changed; empty for the first configuration that is known
    client_id: str | None = None  # the only client that it concerns; None for all
    is_change: bool = True  # False if nothing of the configuration has changed
    apart: int = 0  # hosts that counted apart until then, without MongoDB
    lines: Sequence[str] = ()  # of a configuration that has changed; the text has the first

    def said(self, policies: Collection[str]) -> str:
        """Return the text, with the line of one of these policies if there is one."""
        lines = (line for line in self.lines if any(f"[{policy}]" in line for policy in policies))
        return next((self.text.replace(self.lines[0], line, 1) for line in lines), self.text)


def override_text(override: Override) -> str:
    if override.mode is not None:
        percent = override.canary_percent
        return f"mode {override.mode.value}{'' if percent is None else f' with canary {percent:g} %'}"
    kind, limits = override.target.limit_kind, ", ".join(map(policy_text, override.policies)) or "none"
    return _target_text(override.target) + (f" {limits.removeprefix(f'{kind}: ')}" if kind else "")


def _target_text(target: Target) -> str:
    return target.kind.value if target.limit_kind is None else f"{target.limit_kind.value} limit"


def change_text(entry: HistoryEntry) -> str:
    target = entry.target
    if isinstance(target, Counters):
        what = "counters set to zero"
    elif entry.override is None:
        what = f"override removed, {_target_text(target)}"
    else:
        what = override_text(entry.override)
    return f"{what} for {'everybody' if target.client_id is None else visible_name(target.client_id)}"


def limits_text(found: Mapping[tuple[str, str], Denials]) -> str:
    """Return the limits with most denials, by policy and ``Source.grant``: each with its grant types or endpoint."""
    policies: defaultdict[tuple[str, int, int], Counter[str]] = defaultdict(Counter)
    for (policy, grant), each in found.items():
        policies[policy, each.limit, each.window_s][grant] = each.total
    noted = NOTED_SHARE * sum(grants.total() for grants in policies.values())
    texts = []
    for (policy, limit, window_s), grants in sorted(policies.items(), key=lambda item: -item[1].total()):
        if grants.total() >= noted:
            rate = f" ({rate_text(limit, window_s)})" if limit and window_s else ""
            texts.append(f"the limit {policy.removeprefix('guard/')}{rate}, {' and '.join(map(source_text, grants))}")
    return " and by ".join(texts)


def source_text(grant: str) -> str:
    """Return a ``Source.grant`` in words."""
    if grant.startswith(ENDPOINT):
        return f"at {grant.removeprefix(ENDPOINT)}"
    return f"the guard against guessing ({grant.removeprefix(GUARD)})" if grant.startswith(GUARD) else grant


def when_text(since_s: float, *, is_full: bool) -> str:
    return "In the last full minute" if is_full else f"Since {utc_time(since_s)}"


def change_before(changes: Sequence[Mark], begun_s: float, policies: Collection[str] = ()) -> str:
    """Return the last change so long before the first denial that it may be the cause."""
    found = (each for each in reversed(changes) if each.text and 0 <= begun_s - each.at_s <= CAUSE_S)
    texts = (f"Changed {duration(begun_s - each.at_s)} before it began: {each.said(policies)}." for each in found)
    return next(texts, "")


def outage_before(outages: Sequence[Mark], begun_s: float) -> str:
    """Return the end of the last outage so long before the first denial that it may be the cause."""
    ends = [each for each in outages if 0 <= begun_s - each.at_s <= CAUSE_S][-1:]
    text = "The cause may be an outage of MongoDB until {}: {} hosts counted apart, and what they admitted now counts."
    return "".join(text.format(utc_time(each.at_s), each.apart) for each in ends)


def changes_text(changes: Sequence[Mark], begun_s: float, policies: Collection[str]) -> str:
    """Return the last change, and whether it may be the cause or the remedy."""
    after = [each for each in changes if each.at_s > begun_s and each.text]
    if after:
        return f"Changed since it began, at {utc_time(after[-1].at_s)}: {after[-1].said(policies)}."
    if not changes:
        return "No change of the configuration is recorded."
    unchanged = f"The configuration has not changed since {utc_time(changes[-1].at_s)}."
    return change_before(changes, begun_s, policies) or unchanged


def zone_of(params: Params) -> tzinfo:
    """Return the time zone that is some minutes ahead of UTC."""
    offset = whole(params, "utc_offset", 0, least=-MAX_OFFSET_MIN, most=MAX_OFFSET_MIN)
    return timezone(timedelta(minutes=offset)) if offset else UTC
