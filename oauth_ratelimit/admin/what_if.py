"""
Whom another limit would have denied, for the slider and for the preview of an override.
"""

from collections.abc import Sequence
from typing import get_args

from oauth_ratelimit.admin.cache import Question, Readings
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.overrides import LimitKind
from oauth_ratelimit.core.policy import MAX_LIMIT, Policy
from oauth_ratelimit.core.statistics import MINUTE_S
from oauth_ratelimit.core.what_if import By, Loads, effects, loads
from oauth_ratelimit.operations.changes import checked_client_id
from oauth_ratelimit.operations.context import Desk
from oauth_ratelimit.operations.serialize import Record, bearer_data, effects_data
from oauth_ratelimit.store.mongo.statistics import StatisticsStore

SPANS = {"hour": 3600, "day": 86_400, "week": 604_800}
WINDOW_MINUTES = (1, 5, 10, 15, 30, 60, 360, 1440)
MAX_READ = 30_000  # documents, about half a second; there is no sample, because windows need every minute
KEPT_S = 20.0  # what was recorded; only the limit is another when the slider moves
SHOWN = 50
BY: dict[LimitKind, By] = {LimitKind.CLIENT: "client", LimitKind.USER: "user", LimitKind.CLIENT_TOTAL: "total"}


def what_if(readings: Readings, question: Question) -> object:
    """
    Return what a limit would have done in the last hour, day or week, about.
    """
    span = _one_of(question, "span", tuple(SPANS), "day")
    by: By = _one_of(question, "by", get_args(By), "client")  # type: ignore[assignment]
    window_minutes = int(_one_of(question, "window", tuple(map(str, WINDOW_MINUTES)), "1"))
    limit = _limit(question.get("limit", "100"))
    client_id = question.get("id") or None
    if client_id is not None:
        checked_client_id(client_id)
    now_s, found = readings.read_once(
        ("what-if", span, by, window_minutes, client_id),
        lambda desk: (desk.now_s, _loads(desk, by, SPANS[span] + window_minutes * MINUTE_S, client_id=client_id)),
        keep_s=KEPT_S,
    )
    told = effects(found, limit=limit, window_minutes=window_minutes, since_s=now_s - SPANS[span])
    return {
        "limit": limit,
        "window_s": window_minutes * MINUTE_S,
        "by": by,
        "span_s": SPANS[span],
        # What nobody can have exceeded, were all minutes like the busiest: the end of the slider. One minute more than
        # the window has, because it may begin within one.
        "highest": max([1, *(effect.peak * (window_minutes + 1) for effect in told)]),
        **effects_data(told),
        "bearers": [{**bearer_data(effect), "peak": effect.peak} for effect in told[:SHOWN]],
    }


def past_of(desk: Desk, kind: LimitKind, policy: Policy, *, client_id: str | None) -> Record | None:
    """
    Return what a limit would have done in the last day; None if the statistics cannot tell.
    """
    window_minutes, rest_s = divmod(policy.window.window_s, MINUTE_S)
    if rest_s:
        return None
    try:
        found = _loads(desk, BY[kind], SPANS["day"] + policy.window.window_s, client_id=client_id)
    except ValueError:
        return None
    since_s = desk.now_s - SPANS["day"]
    told = effects(found, limit=policy.limit, window_minutes=window_minutes, since_s=since_s)
    return {"policy": policy.name, "kind": kind.value, **effects_data(told)} if told else None


def _loads(desk: Desk, by: By, span_s: int, *, client_id: str | None) -> Loads:
    """
    Return what was offered.

    Raises:
        ValueError: It is too much to read for a page.
    """
    store, since_s = StatisticsStore(desk.connection), desk.now_s - span_s
    stored = client_id and storable_name(client_id)
    if store.count(since_s, desk.now_s, stored) > MAX_READ:
        raise ValueError(
            "There is too much to read for a page: choose one client or a shorter time, or ask the command line "
            "(flask oauth-ratelimit what-if)."
        )
    parts = ("by", "users") if by == "user" else ("by",)
    return loads(store.minutes(since_s, desk.now_s, stored, parts=parts), by)


def _limit(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 17 and 1 <= int(text) <= MAX_LIMIT):
        raise ValueError(f"limit: a whole number from 1 to {MAX_LIMIT}, got {text[:40]!r}")
    return int(text)


def _one_of(question: Question, name: str, allowed: Sequence[str], default: str) -> str:
    value = question.get(name, default)
    if value not in allowed:
        raise ValueError(f"{name}: one of {', '.join(allowed)}, got {value[:40]!r}")
    return value
