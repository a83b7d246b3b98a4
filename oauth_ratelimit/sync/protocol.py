"""The protocol of a key with its document: what is sent, and what the answer or a later read says of it.

``docs/guarantees.md`` draws the states that hits in flight go through, and has the argument.
"""

import secrets
from collections.abc import Mapping
from heapq import nlargest
from math import ceil

from oauth_ratelimit.core.tier import Series, extend_horizons
from oauth_ratelimit.core.window import shared
from oauth_ratelimit.counters.attempt import Attempt, WriteOutcome
from oauth_ratelimit.counters.bucket import NO_FRAMES
from oauth_ratelimit.counters.key import NO_HORIZONS, AllOrNothing, KeyState, merged
from oauth_ratelimit.counters.pruning import MAX_PRUNED, SLACK_S, Prunable, count_writers
from oauth_ratelimit.store.base import VERSION_JUMP, Change, Hits, Snapshot

MAX_OTHER_WRITES = 16  # of each instance, after which a write that compares the mark alone fails: then others are busy
SPARE_FRAMES = 10  # that can wait to be sent besides those of the widest window: a clock may have stepped


def take(state: KeyState, now_s: float) -> int:
    """Move the fresh hits to ``unsent``, and return the number of requests dropped to bound the memory.

    No clock decides what is dropped: a clock that steps ahead must lose nothing.
    """
    with state.client.lock, AllOrNothing(state, state.buckets()):
        if state.is_dirty:
            state.is_dirty, state.requested_s = False, now_s
        state.gather()
        if not state.fresh_past:
            return 0
        taken = merged(state.unsent, state.fresh_past) if state.unsent else state.fresh_past
        kept = _newest(taken, state.client.horizon_s)
        state.unsent, state.fresh_past = kept, None
    return 0 if kept is taken else state.request_count(taken) - state.request_count(kept)


def counters_to_write(state: KeyState) -> int:
    """Return the number of frames that the next write of a key sends."""
    hits = state.attempt.hits if state.attempt else state.unsent
    return sum(map(len, hits.values())) if hits else 0


def begin_write(state: KeyState, write_number: int, monotonic_s: float) -> Change:
    """Record an attempt to write the unsent hits, or the one that is repeated, and return the change to send."""
    attempt, mark = state.attempt, None
    hits = attempt.hits if attempt else state.unsent or {}
    missing = _missing_horizons(state, hits)
    longest_s = max((*state.horizons.values(), *missing.values()))
    if attempt is None:
        attempt = Attempt(write_number, state.version, hits, monotonic_s, longest_s)
        if state.version is not None and state.goes_by_mark and not missing:
            mark = attempt.mark = state.mark
            attempt.last_version = state.version + MAX_OTHER_WRITES * state.expected_writer_count
        with state.client.lock, AllOrNothing(state):
            state.attempt, state.unsent = attempt, None
    attempt.was_sent = True  # as far as anybody knows
    newest_s = max(map(max, hits.values()))
    if newest_s > state.newest_s:
        state.newest_s = shared(newest_s)
    return Change(  # by position, because names take twice as long
        state.key,
        state.version,
        _next_version(state.version, is_raising=bool(missing)),
        attempt.write_number,
        hits,
        float(state.newest_s + longest_s + SLACK_S),
        state.prunable.frames[:MAX_PRUNED],
        state.prunable.writers[:MAX_PRUNED],
        missing,
        mark,
        attempt.last_version,
    )


def _missing_horizons(state: KeyState, hits: Hits) -> dict[Series, int]:
    """Return the horizons of the tiers and of series with hits, as far as the document has shorter ones or none."""
    if state.horizons == state.client.horizons:
        return {}
    concerned = {bucket.tier.series for bucket in state.buckets()}.union(hits)
    known, wanted = state.horizons, state.client.horizons  # the client's last: it is changed before any bucket
    return {series: wanted[series] for series in concerned if wanted[series] > known.get(series, 0)}


def commit(state: KeyState, change: Change, now_s: float) -> Mapping[str, int]:
    """Note that a write was applied. No other instance has written the document since, unless it went by the mark.

    Returns:
        Hits of the write above each limit, by policy: the excess of the total, at most the hits of the write.
        Writes have an order, so no two instances count the same hit.
    """
    if change.version is None:
        state.is_stale = state.client.sharing.max_writer_count > 2  # others will probably have written
    if change.mark is not None:
        state.is_stale = True
    state.version, state.mark = change.next_version, change.write_number
    state.attempt = None
    state.prunable = state.prunable.after_write()
    if change.horizons:
        state.horizons = extend_horizons(state.horizons, change.horizons)
    with state.client.lock:
        state.advance(now_s)
        excesses = state.watch(now_s)
    return {
        tier.policy.name: min(sum(change.hits.get(tier.series, NO_FRAMES).values()), ceil(excess))
        for tier, excess in excesses.items()
        if not tier.count_denied
    }


def fail_write(state: KeyState, *, was_repeated: bool) -> None:
    """Note that the store has not applied a write. If it was a repeat, the first try may have been: a read shows it."""
    if not was_repeated and state.attempt is not None:
        _take_back(state, state.attempt)
    state.is_stale = True


def _take_back(state: KeyState, attempt: Attempt) -> None:
    with state.client.lock, AllOrNothing(state):
        state.unsent, state.attempt = merged(attempt.hits, state.unsent), None


def resolve(state: KeyState, writer: str, snapshot: Snapshot | None, monotonic_s: float) -> int:
    """Settle the attempt if the document shows its outcome, and return the number of requests dropped.

    Their hits are dropped if the outcome can no longer be known: they may be in the document, and matter to nobody.
    """
    attempt = state.attempt
    if attempt is None:
        return 0
    outcome = attempt.outcome(snapshot, monotonic_s, writer=writer)
    if outcome is WriteOutcome.NOT_APPLIED:
        _take_back(state, attempt)
    elif outcome is not WriteOutcome.UNKNOWN:
        state.attempt = None
    return state.request_count(attempt.hits) if outcome is WriteOutcome.EXPIRED else 0


def merge(state: KeyState, snapshot: Snapshot | None, now_s: float, *, writer: str, prunable: Prunable) -> None:
    """Take over the document that was read."""
    hits: Hits = snapshot.hits if snapshot else {}
    # In this order: an interruption must not leave a new mark or version beside old horizons.
    state.horizons = extend_horizons(snapshot.horizons, NO_HORIZONS) if snapshot else NO_HORIZONS
    state.newest_s = shared(snapshot.newest_s if snapshot else 0)
    state.prunable = prunable
    state.mark = snapshot.writers.get(writer) if snapshot else None
    state.version = snapshot.version if snapshot else None
    if snapshot:
        state.writer_count = count_writers(snapshot, writer=writer)
        state.client.sharing.max_writer_count = max(state.client.sharing.max_writer_count, state.writer_count)
    with state.client.lock:
        state.read_s = now_s
        state.load(hits, now_s)
        state.watch(now_s)


def _newest(hits: Hits, horizon_s: int) -> Hits:
    """Return the hits that may wait to be sent: the same object if there are few frames, as nearly always."""
    if max(map(len, hits.values())) <= SPARE_FRAMES:
        return hits
    counts = {series: horizon_s // series.frame_s + SPARE_FRAMES for series in hits}
    return {series: {s: frames[s] for s in nlargest(counts[series], frames)} for series, frames in hits.items()}


def _next_version(version: int | None, *, is_raising: bool) -> int:
    """Return the version after a write. One that raises a horizon must be noticed by writes that go by their mark.

    That of a first write is one that no earlier document of the key has had, by chance: one of 2^51 numbers.
    """
    if version is None:
        return secrets.randbelow(2**52) | 1
    return (version + (VERSION_JUMP if is_raising else 1)) | 0  # the "or" makes the number 16 bytes smaller
