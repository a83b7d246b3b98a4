"""Check that the tests notice when the package is broken: ``python -m tests.breakages``.

Each breakage below is a mistake that a user would notice. One after the other is made in a copy of the repository, and
the tests that should catch it run there::

    python -m tests.breakages                        # all of them: about ten minutes
    python -m tests.breakages "reply was lost" erase # those whose name contains one of the texts
    python -m tests.breakages --list

The exit code is 1 if a breakage survives or if its old text is not found exactly once. The tests must pass without a
breakage, or they catch everything. When code moves, change the file and the texts, and keep the meaning of the name.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
NOT_COPIED = shutil.ignore_patterns(".git", ".venv*", ".fuzz", ".*_cache", "__pycache__", "*.egg-info")
TIMEOUT_S = 300.0  # per breakage; a test that hangs has not caught anything
CAUGHT = "caught"
TESTS_FAILED = 1  # exit code of pytest; the others mean that the tests could not run


class Breakage(NamedTuple):
    """A deliberate mistake.

    Attributes:
        name: What goes wrong, in plain words.
        file: Where, relative to the repository.
        old: Text that occurs exactly once in the file.
        new: What replaces it.
        tests: Test paths that should catch it, the quickest first, separated by spaces.
    """

    name: str
    file: str
    old: str
    new: str
    tests: str


BREAKAGES = (
    Breakage(
        "sliding estimate counts the oldest frame in full",
        "oauth_ratelimit/core/window.py",
        "return full + edge * left_s / frame_s",
        "return full + edge",
        "tests/core/test_window.py",
    ),
    Breakage(
        "proportional estimate counts the current frame in full",
        "oauth_ratelimit/core/window.py",
        "return current + between, oldest - current",
        "return current + between, oldest",
        "tests/core/test_window.py",
    ),
    Breakage(
        "strict estimate lets the oldest frame fade",
        "oauth_ratelimit/core/window.py",
        "return current + between + oldest, 0",
        "return current + between, oldest",
        "tests/core/test_window.py",
    ),
    Breakage(
        "retry_after is a second too short",
        "oauth_ratelimit/core/window.py",
        "frames * window.frame_s - enough_s)",
        "frames * window.frame_s - enough_s - 1)",
        "tests/core/test_window.py",
    ),
    Breakage(
        "retry_after waits for the end of the frame instead of the moment that is enough",
        "oauth_ratelimit/core/window.py",
        "enough_s = (room - full) * window.frame_s / edge",
        "enough_s = 0.0",
        "tests/core/test_window.py",
    ),
    Breakage(
        "canary takes twice its share of clients",
        "oauth_ratelimit/core/mode.py",
        "< self.percent",
        "< 2 * self.percent",
        "tests/core/test_mode.py",
    ),
    Breakage(
        "request that one tier denies is counted in the tiers that admit it",
        "oauth_ratelimit/counters/client_state.py",
        "admitting = [] if denied else [bucket for bucket, tier in tiers.items() if tier.is_enforced]",
        "admitting = [bucket for bucket in tiers if bucket not in over]",
        "tests/limiter/test_limiter.py tests/limiter/test_reference.py",
    ),
    Breakage(
        "trusted client is denied",
        "oauth_ratelimit/counters/client_state.py",
        "if policies.trusted or policies.mode",
        "if policies.mode",
        "tests/limiter/test_limiter.py",
    ),
    Breakage(
        "dry run denies",
        "oauth_ratelimit/counters/client_state.py",
        "allowed=not denied",
        "allowed=False",
        "tests/limiter/test_limiter.py",
    ),
    Breakage(
        "denied requests count although count_denied is off",
        "oauth_ratelimit/counters/client_state.py",
        "if bucket.tier.count_denied and bucket not in admitting",
        "if bucket not in admitting",
        "tests/limiter/test_limiter.py",
    ),
    Breakage(
        "limits of a client do not replace the defaults",
        "oauth_ratelimit/core/policy.py",
        "base.user if own.user is None else own.user",
        "base.user",
        "tests/core/test_policy.py",
    ),
    Breakage(
        "override still holds after its end",
        "oauth_ratelimit/core/overrides.py",
        "override.until_s is None or now_s < override.until_s",
        "True",
        "tests/core/test_overrides.py tests/background/test_live_settings.py",
    ),
    Breakage(
        "override of the mode beats a file that switches off",
        "oauth_ratelimit/core/overrides.py",
        "if policies.mode is Mode.OFF:",
        "if False:",
        "tests/core/test_overrides.py",
    ),
    Breakage(
        "index that others have made is logged as missing",
        "oauth_ratelimit/store/mongo/client.py",
        'return "IXSCAN" in str(',
        "return False and str(",
        "tests/store/test_rights.py",
    ),
    Breakage(
        "what-if admits more than the limit",
        "oauth_ratelimit/core/what_if.py",
        "limit - full - oldest * held",
        "limit - full",
        "tests/core/test_what_if.py",
    ),
    Breakage(
        "user name reaches counters although names are hashed",
        "oauth_ratelimit/limiter.py",
        """pseudonym = username if self._names is None else self._names(username)
        now_s = self._clock()
        clients = self._clients""",
        """pseudonym = username
        now_s = self._clock()
        clients = self._clients""",
        "tests/limiter/test_hashed_usernames.py",
    ),
    Breakage(
        "fork sends again what its parent has counted",
        "oauth_ratelimit/process/fork.py",
        "            function(owner)",
        "            pass",
        "tests/limiter/test_limiter.py tests/chaos/test_fork_and_kill.py",
    ),
    Breakage(
        "forked child uses the connection of its parent",
        "oauth_ratelimit/store/mongo/client.py",
        "            self._client = None\n\n\ndef connect",
        "            pass\n\n\ndef connect",
        "tests/store/test_client.py",
    ),
    Breakage(
        "last hits are not sent when the limiter closes",
        "oauth_ratelimit/sync/cycle.py",
        "for share in TRY_SHARES:",
        "for share in ():",
        "tests/limiter/test_limiter.py tests/sync/test_cycle.py",
    ),
    Breakage(
        "memory is not bounded by max_keys",
        "oauth_ratelimit/sync/cycle.py",
        "excess = self._clients.excess_count",
        "excess = 0",
        "tests/sync/test_cycle.py tests/counters/test_memory.py",
    ),
    Breakage(
        "clock is not corrected by MongoDB's time",
        "oauth_ratelimit/limiter.py",
        "(lambda: given() + offset_s) if offset_s else given",
        "given",
        "tests/limiter/test_clock.py tests/chaos/test_clocks.py",
    ),
    Breakage(
        "new instance does not learn the counts of busy keys at start",
        "oauth_ratelimit/sync/cycle.py",
        "self._load(states, now_s)",
        "pass",
        "tests/limiter/test_limiter.py tests/sync/test_cycle.py",
    ),
    Breakage(
        "key that a full cycle finds filling up is not looked at again before the next one",
        "oauth_ratelimit/sync/cycle.py",
        "self._clients.dirty_queue.wake_for_urgent()",
        "pass",
        "tests/sync/test_scheduler.py",
    ),
    Breakage(
        "new or nearly exhausted key waits for the next full cycle",
        "oauth_ratelimit/counters/dirty_queue.py",
        "self._urgent.append(state)",
        "pass",
        "tests/sync/test_scheduler.py tests/sync/test_cycle.py",
    ),
    Breakage(
        "new key with a small limit waits for the next full cycle",
        "oauth_ratelimit/counters/bucket.py",
        "FEW_HITS = 10",
        "FEW_HITS = 1",
        "tests/sync/test_cycle.py",
    ),
    Breakage(
        "new key far below its limit is synchronised at once",
        "oauth_ratelimit/counters/bucket.py",
        "FEW_HITS = 10",
        "FEW_HITS = 10**9",
        "tests/sync/test_cycle.py",
    ),
    Breakage(
        "instances that have not read a key admit a part of its limit each, however many they are",
        "oauth_ratelimit/counters/bucket.py",
        "UNREAD_RATIO / peers",
        "UNREAD_RATIO",
        "tests/sync/test_cycle.py",
    ),
    Breakage(
        "key is read before its second write, although nobody else writes it",
        "oauth_ratelimit/sync/flusher.py",
        "(state.peers > 1 or state not in new)",
        "True",
        "tests/sync/test_cycle.py",
    ),
    Breakage(
        "key that several instances write is written without reading it",
        "oauth_ratelimit/sync/flusher.py",
        "state.peers > 2 or",
        "False or",
        "tests/sync/test_cycle.py",
    ),
    Breakage(
        "read of many documents takes several round trips",
        "oauth_ratelimit/store/mongo/counters.py",
        ", batch_size=len(ids) + 1",
        "",
        "tests/store/test_mongo_counters.py",
    ),
    Breakage(
        "write that lost a race is not retried within the cycle",
        "oauth_ratelimit/sync/flusher.py",
        "MAX_ROUNDS = 4",
        "MAX_ROUNDS = 1",
        "tests/sync/test_flusher.py",
    ),
    Breakage(
        "hits of a write that lost a race are dropped",
        "oauth_ratelimit/sync/flusher.py",
        "                batch[index].read_before_write = True\n                lost.append",
        "                batch[index].unsent = None\n                lost.append",
        "tests/sync/test_flusher.py",
    ),
    Breakage(
        "write whose reply was lost is counted twice",
        "oauth_ratelimit/counters/attempt.py",
        "if snapshot.writers.get(writer) == self.flush_id:",
        "if False:",
        "tests/sync/test_cycle.py tests/chaos/test_lost_reply.py",
    ),
    Breakage(
        "write of unknown outcome is taken for applied, its hits lost",
        "oauth_ratelimit/sync/flusher.py",
        "                    if state.attempt is None:\n",
        "                    state.unsent = None\n                    if False:\n",
        "tests/sync/test_cycle.py tests/chaos/test_lost_reply.py",
    ),
    Breakage(
        "hits are sent again although their mark may be gone",
        "oauth_ratelimit/counters/attempt.py",
        "if monotonic_s - self.begun_s >",
        "if False and 0 >",
        "tests/simulation/test_short_histories.py",
    ),
    Breakage(
        "version numbers repeat after a document was removed",
        "oauth_ratelimit/sync/flusher.py",
        "secrets.randbelow(2**52) | 1",
        "1",
        "tests/sync/test_flusher.py tests/sync/test_cycle.py tests/chaos/test_removed_documents.py",
    ),
    Breakage(
        "document expires while its newest frame still counts",
        "oauth_ratelimit/sync/flusher.py",
        "state.end_s(hits) + SLACK_S",
        "state.newest_s",
        "tests/store/test_mongo_counters.py",
    ),
    Breakage(
        "frames of an instance with other limits are removed too early",
        "oauth_ratelimit/counters/pruning.py",
        "horizons.get(series, MAX_HORIZON_S)",
        "horizons.get(series, 0)",
        "tests/counters/test_pruning.py",
    ),
    Breakage(
        "frames are removed by the horizon of an instance with a narrower window",
        "oauth_ratelimit/store/mongo/document.py",
        '"$max": {EXPIRE: expire, **raised}',
        '"$max": {EXPIRE: expire}',
        "tests/store/test_contract.py tests/simulation",
    ),
    Breakage(
        "frames are removed by the newest frame, which a wrong clock may have dated",
        "oauth_ratelimit/counters/pruning.py",
        "    time_s = store_time_s()\n",
        "    time_s: float | None = frames_s\n",
        "tests/counters/test_pruning.py tests/sync/test_flusher.py tests/simulation",
    ),
    Breakage(
        "frames are removed by an instance's own clock",
        "oauth_ratelimit/sync/flusher.py",
        "store_time_s=self._server_clock.time_s)",
        "store_time_s=lambda: now_s)",
        "tests/simulation",
    ),
    Breakage(
        "write whose mark is gone is repeated for a window that was widened since",
        "oauth_ratelimit/counters/attempt.py",
        "> self.horizon_s:",
        "> max(snapshot.horizons.values()):",
        "tests/sync/test_flusher.py",
    ),
    Breakage(
        "hits of an unanswered write are dropped while a window holds them",
        "oauth_ratelimit/counters/attempt.py",
        "> self.horizon_s:",
        ">= self.horizon_s:",
        "tests/sync/test_flusher.py",
    ),
    Breakage(
        "write whose mark a server with a faster clock has removed is repeated",
        "oauth_ratelimit/counters/attempt.py",
        "> self.horizon_s:",
        "> self.horizon_s + 60:",
        "tests/simulation/test_short_histories.py",
    ),
    Breakage(
        "write whose mark is gone is repeated because another kind of grant has a wider window",
        "oauth_ratelimit/sync/flusher.py",
        "begun_s, state.longest_s, was_sent",
        "begun_s, state.client.horizon_s, was_sent",
        "tests/sync/test_flusher.py",
    ),
    Breakage(
        "first write that arrives after its document was removed counts twice",
        "oauth_ratelimit/counters/attempt.py",
        "removed.\n        return Outcome.PENDING if self.version is None else Outcome.NOT_APPLIED",
        "removed.\n        return Outcome.NOT_APPLIED",
        "tests/sync/test_flusher.py",
    ),
    Breakage(
        "request is kept by its own state",
        "oauth_ratelimit/flask_authlib/middleware.py",
        "state = environ.pop(STATE_KEY, None)",
        "state = environ.get(STATE_KEY)",
        "tests/flask_authlib/test_middleware.py",
    ),
    Breakage(
        "denied request is kept by the traceback of its denial",
        "oauth_ratelimit/flask_authlib/middleware.py",
        "state.denial = None",
        "pass",
        "tests/flask_authlib/test_middleware.py",
    ),
    Breakage(
        "request with an assertion is kept by its grant",
        "oauth_ratelimit/flask_authlib/failed_auth.py",
        '    vars(grant).pop("validate_token_request", None)',
        "    pass",
        "tests/flask_authlib/test_middleware.py",
    ),
    Breakage(
        "measurement of a request has the trace of another one",
        "oauth_ratelimit/observe/observer.py",
        "if has_context():",
        "if has_context() and False:",
        "tests/observe/test_otel.py",
    ),
    Breakage(
        "one request of a group is counted instead of all",
        "oauth_ratelimit/observe/metrics.py",
        "                    add(count)",
        "                    add(1)",
        "tests/observe/test_metrics.py tests/flask_authlib/test_pages.py",
    ),
    Breakage(
        "last requests before a scrape are not counted",
        "oauth_ratelimit/flask_authlib/app_limiter.py",
        "                worker.observer.count_noted()\n",
        "                pass\n",
        "tests/flask_authlib/test_pages.py",
    ),
    Breakage(
        "last requests before the end of a process are not counted",
        "oauth_ratelimit/background/worker.py",
        "        self._attempt(self.observer.count_noted)\n",
        "",
        "tests/flask_authlib/test_statistics.py",
    ),
    Breakage(
        "garbage collector takes the objects of a flush for old",
        "oauth_ratelimit/sync/flusher.py",
        "        collect_young_garbage(states)\n",
        "",
        "tests/process/test_yielding.py",
    ),
    Breakage(
        "horizon of a window that was narrowed is forgotten",
        "oauth_ratelimit/counters/client_state.py",
        "self.former_horizons = raised(self.former_horizons, self._tiers_of_all_kinds)",
        "pass",
        "tests/sync/test_changed_limits.py tests/simulation",
    ),
    Breakage(
        "hits are inherited by a series that the document holds already",
        "oauth_ratelimit/counters/bucket.py",
        "        self.pending = pending or None\n",
        """        for new in self.buckets:
            if former and new.tier.series not in former:
                (*_, before) = former.values()
                pending = arithmetic.added(pending, {new.tier.series: before.frames()})
        self.pending = pending or None
""",
        "tests/sync/test_changed_limits.py tests/simulation",
    ),
    Breakage(
        "hits that wait are forgotten when a configuration is changed again",
        "oauth_ratelimit/counters/bucket.py",
        "        pending = self.drain_all()\n",
        "        self.pending = None\n        pending = self.drain_all()\n",
        "tests/sync/test_changed_limits.py tests/simulation",
    ),
    Breakage(
        "hits of a frame are forgotten when the clock steps back into it",
        "oauth_ratelimit/counters/bucket.py",
        "start_s: carried.get(start_s, 0) + fresh}",
        "start_s: fresh}",
        "tests/counters/test_bucket.py tests/simulation",
    ),
    Breakage(
        "only the first 10,000 marks of a document are read",
        "oauth_ratelimit/store/mongo/document.py",
        'in _entries(document, "writers", damage).items():',
        'in list(_entries(document, "writers", damage).items())[:10_000]:',
        "tests/store/test_document.py",
    ),
    Breakage(
        "limit of all users has a second memory when it comes back",
        "oauth_ratelimit/counters/client_state.py",
        "        total = self.total or self.former_total\n        if total is not None and self.total_tiers",
        "        total = self.total\n        if total is not None and self.total_tiers",
        "tests/simulation/test_short_histories.py",
    ),
    Breakage(
        "forgotten limit of all users takes the client's own key with it",
        "oauth_ratelimit/counters/client_state.py",
        "            self.former_total = None\n            return False\n",
        "            self.former_total = None\n",
        "tests/counters tests/simulation",
    ),
    Breakage(
        "memory of a key that was evicted goes on counting",
        "oauth_ratelimit/limiter.py",
        "            state = self._clients.key_of(client, username, now_s)\n            decision",
        """            kept = self.__dict__.setdefault("kept", {})
            state = kept.setdefault((id(client), username), self._clients.key_of(client, username, now_s))
            decision""",
        "tests/simulation",
    ),
    Breakage(
        "write that MongoDB reports as refused is taken for not applied",
        "oauth_ratelimit/sync/flusher.py",
        "was_sent = not isinstance(exc, StoreUnreachable)",
        """was_sent = not isinstance(exc, StoreUnreachable)
                if type(exc).__name__ == "StoreRejected":
                    raise""",
        "tests/simulation",
    ),
    Breakage(
        "limit of all users is read with the next full cycle",
        "oauth_ratelimit/counters/client_state.py",
        "if concerned.due_cycle is Due.UNLISTED and concerned.is_urgent_unread:",
        "if False:",
        "tests/sync/test_cycle.py",
    ),
    Breakage(
        "wrong clock of a new primary counts at once",
        "oauth_ratelimit/sync/clock.py",
        "or self._is_confirmed(epoch_s):",
        "or True:",
        "tests/sync/test_clock.py",
    ),
    Breakage(
        "parts of a process that ends have a time of their own each",
        "oauth_ratelimit/sync/cycle.py",
        "deadline.part(share).remaining_s",
        "5.0",
        "tests/sync/test_ending.py",
    ),
    Breakage(
        "hits of a write without an answer are reported as undelivered",
        "oauth_ratelimit/counters/key_state.py",
        "if self.attempt and self.attempt.was_sent else 0",
        "if False else 0",
        "tests/sync/test_ending.py",
    ),
    Breakage(
        "instance that ends leaves its marks in the documents",
        "oauth_ratelimit/sync/cycle.py",
        "flusher.leave(states + self.schedule.all(), part)",
        "pass",
        "tests/sync/test_leaving.py",
    ),
    Breakage(
        "mark of a writer is removed while its write may still be in doubt",
        "oauth_ratelimit/counters/pruning.py",
        "oldest_seen_s = seen_s - longest_s - SLACK_S",
        "oldest_seen_s = seen_s",
        "tests/counters/test_pruning.py tests/simulation",
    ),
    Breakage(
        "in-flight hits are forgotten when a global snapshot is read",
        "oauth_ratelimit/counters/bucket.py",
        "current = fresh = self.full - self.sent",
        "current = fresh = 0",
        "tests/counters/test_bucket.py",
    ),
    Breakage(
        "document has two states in a process",
        "oauth_ratelimit/counters/registry.py",
        "client = self._at(name, policies.scope)",
        "client = None",
        "tests/counters/test_registry.py",
    ),
    Breakage(
        "near_limit: reserve does not ask MongoDB before the last requests",
        "oauth_ratelimit/counters/client_state.py",
        "return concerned if any(each.has_reached_alert for each in concerned) else ()",
        "return ()",
        "tests/limiter/test_reserve.py",
    ),
    Breakage(
        "write applies although another instance wrote in between",
        "oauth_ratelimit/store/mongo/document.py",
        '{"_id": identity, "version": Int64(change.version), "requestCounters": NO_LIST}',
        '{"_id": identity, "requestCounters": NO_LIST}',
        "tests/store/test_contract.py",
    ),
    Breakage(
        "write leaves no mark of its writer",
        "oauth_ratelimit/store/mongo/document.py",
        'mark, seen = f"writers.{writer}", f"seen.{writer}"',
        'mark, seen = f"nobody.{writer}", f"seen.{writer}"',
        "tests/store/test_contract.py",
    ),
    Breakage(
        "lost race on a known document is reported as a rejected write",
        "oauth_ratelimit/store/mongo/counters.py",
        "frozenset({66, 11000})",
        "frozenset({11000})",
        "tests/store/test_contract.py",
    ),
    Breakage(
        "instances write an erased user back from memory",
        "oauth_ratelimit/sync/flusher.py",
        "self._on_erased(new)",
        "pass",
        "tests/store/test_erasure.py",
    ),
    Breakage(
        "schedule keeps the names of erased users until their keys are due",
        "oauth_ratelimit/sync/cycle.py",
        "        self._clients.erase(marks)\n        self.schedule.drop_forgotten()",
        "        self._clients.erase(marks)",
        "tests/simulation/test_short_histories.py",
    ),
    Breakage(
        "erased user's hits that were not sent are kept",
        "oauth_ratelimit/counters/client_state.py",
        "        state.discard()\n",
        "",
        "tests/simulation/test_short_histories.py",
    ),
    Breakage(
        "document expires although a wider window of another instance needs it",
        "oauth_ratelimit/counters/key_state.py",
        "return self.newest_s + self.longest_s",
        "return self.newest_s + self.client.horizon_s",
        "tests/simulation/test_short_histories.py",
    ),
    Breakage(
        "document expires although a window that was widened since needs its newest hits",
        "oauth_ratelimit/counters/key_state.py",
        "max(self.newest_s, *map(max, hits.values()))",
        "max(map(max, hits.values()))",
        "tests/simulation/test_short_histories.py",
    ),
    Breakage(
        "interrupted write is taken for one that was never made",
        "oauth_ratelimit/sync/flusher.py",
        "except BaseException as exc:",
        "except Exception as exc:",
        "tests/sync/test_cycle.py",
    ),
    Breakage(
        "store that fails is called without a pause",
        "oauth_ratelimit/sync/scheduler.py",
        "* 2 ** min(self._failure_count, MAX_DOUBLINGS)",
        "",
        "tests/sync/test_scheduler.py",
    ),
    Breakage(
        "failed authentications fill the memory while MongoDB is unreachable",
        "oauth_ratelimit/guard.py",
        "self.limiter.sync(is_reachable=is_reachable, is_scheduled=True)",
        "is_reachable and self.limiter.sync(is_scheduled=True)",
        "tests/background/test_worker.py",
    ),
    Breakage(
        "instance that was cut off writes before it has read the erasures",
        "oauth_ratelimit/sync/cycle.py",
        "state.read_before_write = True  # the user may be erased before",
        "pass  # the user may be erased before",
        "tests/store/test_erasure.py",
    ),
    Breakage(
        "user who was erased in an outage comes back by a write that does not read first",
        "oauth_ratelimit/sync/flusher.py",
        "state.read_before_write = True  # the user may be erased before",
        "pass  # the user may be erased before",
        "tests/sync/test_flusher.py",
    ),
    Breakage(
        "starting instance drops users for erasures of the past",
        "oauth_ratelimit/sync/flusher.py",
        "if found[mark] > started_s}",
        "if True}",
        "tests/store/test_erasure.py",
    ),
    Breakage(
        "starting instance drops users for erasures of the past while MongoDB's clock is not answered",
        "oauth_ratelimit/sync/flusher.py",
        "if not self._erasures:",
        "if not self._erasures and self._server_clock.time_s() is not None:",
        "tests/store/test_erasure.py",
    ),
    Breakage(
        "numbers of another form are left out, and the document is written",
        "oauth_ratelimit/store/mongo/document.py",
        "        if start_s is None or count is None:\n            damage.quarantine(",
        "        if start_s is None or count is None:\n            damage.ignore(",
        "tests/store/test_document.py tests/store/test_damaged_documents.py",
    ),
    Breakage(
        "write takes the length of frames for a position in a list",
        "oauth_ratelimit/store/mongo/document.py",
        """NO_LIST = {"$not": {"$type": "array"}}""",
        """NO_LIST = {"$not": {"$type": "regex"}}""",
        "tests/store/test_damaged_documents.py",
    ),
    Breakage(
        "damaged document resolves a write of unknown outcome",
        "oauth_ratelimit/counters/attempt.py",
        "if snapshot.version in (self.version, UNUSABLE_VERSION):",
        "if snapshot.version == self.version:",
        "tests/store/test_damaged_documents.py",
    ),
    Breakage(
        "starting instance receives documents of any size",
        "oauth_ratelimit/store/mongo/document.py",
        """is_sent = {"$lte": [size, max_bytes]}""",
        """is_sent = {"$lte": [0, max_bytes]}""",
        "tests/store/test_mongo_counters.py",
    ),
    Breakage(
        "writes are acknowledged before a majority has journaled them",
        "oauth_ratelimit/store/mongo/client.py",
        'WriteConcern(w="majority", j=True)',
        "WriteConcern(w=1)",
        "tests/store/test_mongo_counters.py",
    ),
    Breakage(
        "damaged document hinders the documents read with it",
        "oauth_ratelimit/store/mongo/document.py",
        "if is_document_id(identity):",
        "if True:",
        "tests/store/test_document.py",
    ),
    Breakage(
        "statistics of several instances overwrite each other",
        "oauth_ratelimit/store/mongo/statistics.py",
        'f"by.{writer}.{source.kind}',
        'f"by.all.{source.kind}',
        "tests/store/test_statistics.py",
    ),
    Breakage(
        "instances do not notice a new override",
        "oauth_ratelimit/store/mongo/overrides.py",
        '{"$set": {"value": ObjectId()}}',
        '{"$set": {"seen": True}}',
        "tests/store/test_overrides.py",
    ),
    Breakage(
        "reset of counters is overwritten by an instance that counts on",
        "oauth_ratelimit/store/mongo/document.py",
        '{"$inc": {"version": 1}, "$unset"',
        '{"$unset"',
        "tests/store/test_inspect.py",
    ),
    Breakage(
        "erase leaves the last documents of a part",
        "oauth_ratelimit/store/mongo/erasure.py",
        "if remove and batch:",
        "if False:",
        "tests/store/test_erasure.py",
    ),
    Breakage(
        "erase leaves a name in the reason of an override",
        "oauth_ratelimit/store/mongo/erasure.py",
        'for field in ("by", "reason"):',
        'for field in ("by",):',
        "tests/store/test_erasure.py",
    ),
    Breakage(
        "database upgrade makes an index that does not expire counters",
        "migrations/0001_indexes.py",
        'create_index("expire", name="expire", expireAfterSeconds=0)',
        'create_index("expire", name="expire")',
        "tests/store/test_migrations.py",
    ),
    Breakage(
        "database upgrade skips the last migration",
        "oauth_ratelimit/store/mongo/migrations.py",
        "if state.applied_at_s is None]",
        "if state.applied_at_s is None][:-1]",
        "tests/store/test_migrations.py",
    ),
    Breakage(
        "denied answer has no Retry-After",
        "oauth_ratelimit/flask_authlib/responses.py",
        '("Retry-After", str(',
        '("X-Retry-After", str(',
        "tests/flask_authlib/test_responses.py",
    ),
    Breakage(
        "emergency command needs a valid file",
        "oauth_ratelimit/cli/context.py",
        "self.needs_store_alone = True",
        "pass",
        "tests/cli/test_emergency.py",
    ),
    Breakage(
        "erase does not ask on a terminal",
        "oauth_ratelimit/cli/options.py",
        "if not is_confirmed and sys.stdin.isatty():",
        "if not is_confirmed and sys.stdin.closed:",
        "tests/cli/test_emergency.py",
    ),
    Breakage(
        "problem of a file has the line before",
        "oauth_ratelimit/config/document.py",
        "lines[path] = key.start_mark.line + 1",
        "lines[path] = key.start_mark.line",
        "tests/config/test_errors.py",
    ),
    Breakage(
        "misspelt grant type is accepted",
        "oauth_ratelimit/config/policies.py",
        "if name != meant:",
        "if not name:",
        "tests/config/test_errors.py",
    ),
    Breakage(
        "relative path depends on the working directory",
        "oauth_ratelimit/flask_authlib/app_config.py",
        "for folder in (app.root_path, app.instance_path):",
        "for folder in (app.instance_path,):",
        "tests/flask_authlib/test_app_config.py",
    ),
    Breakage(
        "forked worker does not log its start",
        "oauth_ratelimit/flask_authlib/start_report.py",
        "if self not in self._pending:",
        "if self._is_logged:",
        "tests/flask_authlib/test_start_report.py",
    ),
    Breakage(
        "enforcing without a shared store is no warning",
        "oauth_ratelimit/operations/summary.py",
        "if settings.store.uri is None and enforces(settings.policies) else []",
        "if settings.store.uri is None and settings.max_keys < 0 else []",
        "tests/flask_authlib/test_start_report.py tests/cli/test_config.py",
    ),
    Breakage(
        "quota headers are sent in a dry run",
        "oauth_ratelimit/core/decision.py",
        "            if one.tier.is_enforced:",
        "            if one.tier.limit:",
        "tests/flask_authlib/test_middleware.py",
    ),
    Breakage(
        "decision is left to the garbage collector",
        "oauth_ratelimit/core/decision.py",
        "return self  # not stored",
        "self._nearest = self  # not stored",
        "tests/core/test_decision.py",
    ),
    Breakage(
        "quota header shows the limit as what is left",
        "oauth_ratelimit/flask_authlib/responses.py",
        '("X-RateLimit-Remaining", f"{remaining}")',
        '("X-RateLimit-Remaining", f"{policy.limit}")',
        "tests/flask_authlib/test_responses.py",
    ),
    Breakage(
        "device grant is not told to slow down",
        "oauth_ratelimit/flask_authlib/responses.py",
        '"slow_down" if grant_type == DEVICE_GRANT else denial.error',
        "denial.error",
        "tests/flask_authlib/test_responses.py tests/flask_authlib/test_token_endpoint.py",
    ),
    Breakage(
        "token is refused when the limiter itself fails",
        "oauth_ratelimit/flask_authlib/app_limiter.py",
        'self.log_failure("check_failed", exc)\n            return [], None',
        "raise",
        "tests/flask_authlib/test_app_limiter.py tests/flask_authlib/test_token_endpoint.py",
    ),
    Breakage(
        "one HTTP request is decided and counted twice",
        "oauth_ratelimit/flask_authlib/hooks.py",
        "if not state.is_decided:\n        state.client = client",
        "if True:\n        state.client = client",
        "tests/flask_authlib/test_hooks.py tests/flask_authlib/test_token_endpoint.py",
    ),
    Breakage(
        "other OAuth endpoints are not limited",
        "oauth_ratelimit/flask_authlib/hooks.py",
        "limit_client(endpoint, client, oauth_request=request)",
        "pass",
        "tests/flask_authlib/test_endpoints.py",
    ),
    Breakage(
        "health page says ok while the synchronisation lags",
        "oauth_ratelimit/blueprints.py",
        "503 if is_lagging else 200",
        "200",
        "tests/flask_authlib/test_pages.py",
    ),
    Breakage(
        "HEAD escapes the limit of GET",
        "oauth_ratelimit/core/policy.py",
        'accepted = {method, "GET"} if method == "HEAD" else {method}',
        "accepted = {method}",
        "tests/core/test_policy.py",
    ),
    Breakage(
        "client that is trusted at run time is a pattern",
        "oauth_ratelimit/core/policy.py",
        "client_id in self.trusted_ids or matches_any(self.trusted, client_id)",
        "matches_any((*self.trusted, *self.trusted_ids), client_id)",
        "tests/core/test_overrides.py",
    ),
    Breakage(
        "client id in the log looks like another field",
        "oauth_ratelimit/core/key.py",
        "_FIELD_SYNTAX = frozenset('\"=\\\\')",
        "_FIELD_SYNTAX: frozenset[str] = frozenset()",
        "tests/limiter/test_hostile_names.py",
    ),
    Breakage(
        "brackets in a row are parsed",
        "oauth_ratelimit/config/document.py",
        "if problem is None and _TOO_DEEP.search(content):",
        "if False:",
        "tests/config/test_document.py",
    ),
    Breakage(
        "documented role may make indexes on any collection",
        "docs/security.md",
        '"collection": ""}, "actions": ["listCollections"]}',
        '"collection": ""}, "actions": ["listCollections", "createIndex"]}',
        "tests/store/test_rights.py",
    ),
    Breakage(
        "downloaded OpenSSL is not checked",
        "tests/support/mongod_program.py",
        "if digest != _OPENSSL_WHEEL_SHA256:",
        "if False:",
        "tests/support/test_mongod.py",
    ),
    Breakage(
        "guard does not deny guessing",
        "oauth_ratelimit/guard.py",
        "if decision is not None and decision.would_deny:",
        "if False:",
        "tests/flask_authlib/test_failed_auth.py",
    ),
    Breakage(
        "guard denies a trusted client that has proven itself",
        "oauth_ratelimit/flask_authlib/failed_auth.py",
        "is_exempt=not is_public and guarded.guard.trusts(client_id)",
        "is_exempt=False",
        "tests/flask_authlib/test_guessing.py",
    ),
    Breakage(
        "guard exempts a trusted client that anybody can name",
        "oauth_ratelimit/flask_authlib/failed_auth.py",
        "is_exempt=not is_public and guarded.guard.trusts(client_id)",
        "is_exempt=guarded.guard.trusts(client_id)",
        "tests/flask_authlib/test_guessing.py",
    ),
    Breakage(
        "guard does not count wrong client secrets",
        "oauth_ratelimit/flask_authlib/failed_auth.py",
        'return claims if getattr(error, "error", None) == CLIENT_ERROR else ()',
        "return ()",
        "tests/flask_authlib/test_failed_auth.py",
    ),
    Breakage(
        "guard stops counting while a limit on trial reports",
        "oauth_ratelimit/guard.py",
        "if alarm.decision.allowed and any(key.scope in self._enforced for key in keys):",
        "if False:",
        "tests/flask_authlib/test_guessing.py",
    ),
    Breakage(
        "guard leaves secrets at other endpoints unlimited",
        "oauth_ratelimit/flask_authlib/hooks.py",
        "    if guarding is None:\n",
        "    if guarding is None or endpoint != TOKEN_ENDPOINT:\n",
        "tests/flask_authlib/test_guessing.py",
    ),
    Breakage(
        "guard takes another client's secret for its own if the ids are spelt alike",
        "oauth_ratelimit/flask_authlib/failed_auth.py",
        "claim.client_id != own_id]",
        "folded(claim.client_id) != folded(own_id)]",
        "tests/flask_authlib/test_guessing.py",
    ),
    Breakage(
        "guard lets parallel guesses pass together",
        "oauth_ratelimit/guard.py",
        "if total > policy.limit or",
        "if total > 1_000 or",
        "tests/flask_authlib/test_guessing.py",
    ),
    Breakage(
        "each process checks as many guesses at a password at once as the limit allows all of them",
        "oauth_ratelimit/guard.py",
        "or (one_at_a_time and key.scope in NAMING_SCOPES):",
        "or False:",
        "tests/guard/test_shared_failures.py",
    ),
    Breakage(
        "failures wait for the next full cycle",
        "oauth_ratelimit/counters/client_state.py",
        "if state.has_reached_alert:",
        "if False:",
        "tests/guard/test_shared_failures.py",
    ),
    Breakage(
        "owner of a token is asked for where there are no limits",
        "oauth_ratelimit/flask_authlib/endpoints.py",
        "caller = None if endpoint is None else find_caller(app_limiter)",
        "caller = find_caller(app_limiter)",
        "tests/flask_authlib/test_endpoints.py",
    ),
    Breakage(
        "guard does not count wrong passwords of Authlib's own grant",
        "oauth_ratelimit/flask_authlib/failed_auth.py",
        'USER_ERRORS = frozenset({"invalid_grant", "invalid_request", "access_denied"})',
        'USER_ERRORS = frozenset({"invalid_grant"})',
        "tests/fuzz/test_guesses.py",
    ),
    Breakage(
        "check-config says nothing of a guard without a ceiling",
        "oauth_ratelimit/operations/summary.py",
        "settings.is_guarded and not settings.guard.limits.passed_on_total",
        "False",
        "tests/cli/test_config.py",
    ),
    Breakage(
        "guard counts several secrets in a request as one",
        "oauth_ratelimit/flask_authlib/failed_auth.py",
        "cost=_secret_count(claims)",
        "cost=1",
        "tests/flask_authlib/test_guessing.py",
    ),
    Breakage(
        "guard counts several secrets in a request as one, as the fuzzer found",
        "oauth_ratelimit/flask_authlib/failed_auth.py",
        "cost=_secret_count(claims)",
        "cost=1",
        "tests/fuzz/test_guesses.py",
    ),
    Breakage(
        "guard denies right secrets because others are being checked",
        "oauth_ratelimit/guard.py",
        "if crowded is None or left_s <= 0:",
        "if True:",
        "tests/flask_authlib/test_guessing.py",
    ),
    Breakage(
        "guard has no ceiling for the passwords that a client passes on",
        "oauth_ratelimit/core/failed_auth.py",
        "return [*passed_on, FailureKey.at(FailureKind.PASSED_ON_TOTAL, client_id, ANYONE)]",
        "return passed_on",
        "tests/flask_authlib/test_guessing.py",
    ),
    Breakage(
        "clients whose keys were evicted leave no room for new ones",
        "oauth_ratelimit/counters/registry.py",
        "(0 if is_crowded else self._key_count + SPARE_CLIENTS // 2)",
        "self._key_count + SPARE_CLIENTS // 2",
        "tests/counters/test_memory.py",
    ),
    Breakage(
        "guard takes each address of an IPv6 network for another attacker",
        "oauth_ratelimit/core/failed_auth.py",
        "IPV6_NETWORK_BITS = 64",
        "IPV6_NETWORK_BITS = 128",
        "tests/core/test_failed_auth.py",
    ),
    Breakage(
        "password of a mistyped connection string appears in the configuration error",
        "oauth_ratelimit/config/errors.py",
        "got {'another text' if is_secret else show(value)}",
        "got {show(value)}",
        "tests/config/test_bad_values.py tests/test_secrets.py",
    ),
    Breakage(
        "password of the database appears in the repr of the settings",
        "oauth_ratelimit/config/settings.py",
        "        is_secret=True,\n",
        "",
        "tests/config/test_bad_values.py tests/test_secrets.py",
    ),
    Breakage(
        "unknown configuration key is accepted",
        "oauth_ratelimit/config/types.py",
        "problems.unknown_key(dotted(at, name), str(name), self.keys)",
        "pass",
        "tests/config/test_loader.py tests/config/test_bad_values.py",
    ),
    Breakage(
        "limit of zero is accepted",
        "oauth_ratelimit/config/limits.py",
        "whole(1, MAX_LIMIT, f",
        "whole(0, MAX_LIMIT, f",
        "tests/config/test_bad_values.py",
    ),
    Breakage(
        "shorthand ignores the number of units in 5 per 10 second",
        "oauth_ratelimit/config/notation.py",
        "int(match[2] or 1) * granularity_s",
        "granularity_s",
        "tests/config/test_notation.py",
    ),
    Breakage(
        "only the first configuration problem is reported",
        "oauth_ratelimit/config/errors.py",
        "for problem in self._found], source=source)",
        "for problem in self._found[:1]], source=source)",
        "tests/config/test_loader.py tests/config/test_bad_values.py",
    ),
    Breakage(
        "broken configuration file replaces the settings that apply",
        "oauth_ratelimit/config/source.py",
        'b"" if content is None else _digest(content))\n            return None',
        'b"" if content is None else _digest(content))\n            return Settings()',
        "tests/config/test_source.py",
    ),
    Breakage(
        "changed configuration file is not reloaded",
        "oauth_ratelimit/config/source.py",
        "if settled and stamp",
        "if False and stamp",
        "tests/config/test_source.py",
    ),
    Breakage(
        "overrides are lost while MongoDB is unreachable",
        "oauth_ratelimit/background/live_settings.py",
        "        except StoreError as exc:\n",
        "        except StoreError as exc:\n            self._overrides = ()\n",
        "tests/background/test_live_settings.py",
    ),
    Breakage(
        "would-be denial is counted as denied",
        "oauth_ratelimit/core/decision.py",
        '"would_deny" if decision.allowed else "denied"',
        '"denied"',
        "tests/core/test_decision.py tests/observe/test_statistics.py tests/observe/test_metrics.py",
    ),
    Breakage(
        "metrics have a label for every client",
        "oauth_ratelimit/observe/metrics.py",
        "        if len(self._labels) >= (MAX_CLIENTS if is_over_limit else FIRST_COME_CLIENTS):\n"
        "            return OTHER\n"
        "        with self._lock:\n"
        "            if len(self._labels) >= MAX_CLIENTS:\n"
        "                return OTHER\n",
        "        with self._lock:\n",
        "tests/observe/test_metrics.py",
    ),
    Breakage(
        "metrics have a label for every grant type that a client makes up",
        "oauth_ratelimit/observe/observer.py",
        "if grant_type is None or not self._has_grant(grant_type):",
        "if grant_type is None:",
        "tests/observe/test_observer.py",
    ),
    Breakage(
        "flood of denials is logged without a limit per minute",
        "oauth_ratelimit/observe/events.py",
        "if minute.logged_count < self.per_minute and minute.logged[client_id] < client_share:",
        "if True:",
        "tests/observe/test_events.py",
    ),
    Breakage(
        "decision_id of a denied answer is not found",
        "oauth_ratelimit/store/mongo/denials.py",
        "record if number - record.denial.first_id <=",
        "record if record.denial.first_id - number >",
        "tests/store/test_denials.py",
    ),
    Breakage(
        "explain forecasts an admission for a key over its limit",
        "oauth_ratelimit/operations/explain.py",
        "if usage.retry_after_s > 0]",
        "if usage.retry_after_s < 0]",
        "tests/cli/test_explain.py",
    ),
    Breakage(
        "check-config exits with 0 for an invalid file",
        "oauth_ratelimit/cli/config.py",
        "ctx.exit(1 if problems else 0)",
        "ctx.exit(0)",
        "tests/cli/test_config.py",
    ),
    Breakage(
        "commands exit with 1 instead of 3 when MongoDB is unreachable",
        "oauth_ratelimit/cli/__init__.py",
        "NO_DATABASE = 3",
        "NO_DATABASE = 1",
        "tests/cli/test_command.py",
    ),
    Breakage(
        "erase --dry-run removes documents",
        "oauth_ratelimit/cli/database.py",
        "part(not dry_run)",
        "part(True)",
        "tests/store/test_erasure.py",
    ),
    Breakage(
        "admin page never shows what an instance writes late",
        "oauth_ratelimit/admin/sums.py",
        "return now_s - self.read_at_s >= max(RECHECK_S, self.read_at_s - end_s)",
        "return False",
        "tests/admin/test_history.py",
    ),
    Breakage(
        "admin page keeps the sums of minutes that instances still write",
        "oauth_ratelimit/admin/history.py",
        "return start_s + step_s + SETTLED_S <= self.now_s",
        "return start_s + step_s <= self.now_s",
        "tests/admin/test_history.py",
    ),
    Breakage(
        "admin page keeps every step that it has ever read",
        "oauth_ratelimit/admin/history.py",
        "del kept[start_s]",
        "kept[start_s]",
        "tests/admin/test_history.py",
    ),
    Breakage(
        "admin page calls an unknown client fine",
        "oauth_ratelimit/admin/client_use.py",
        "if suggestions is not None:",
        "if suggestions is not None and not suggestions:",
        "tests/admin/test_verdict.py",
    ),
    Breakage(
        "preview of a mode says that nothing would be denied",
        "oauth_ratelimit/admin/preview.py",
        "total.tally.over if denies else 0",
        "0",
        "tests/admin/test_changes.py",
    ),
    Breakage(
        "what-if drops the other tiers of a client",
        "oauth_ratelimit/admin/what_if.py",
        "policy.window.window_s == window_s else policy for policy in policies",
        "policy.window.window_s == window_s else policy for policy in policies[:1]",
        "tests/admin/test_what_if.py",
    ),
    Breakage(
        "admin page accepts a change without a valid CSRF token",
        "oauth_ratelimit/admin/security.py",
        'if not tokens.is_valid(request.headers.get(TOKEN_HEADER, ""), operator):',
        "if False:",
        "tests/admin/test_security.py",
    ),
    Breakage(
        "admin page accepts a change from another site",
        "oauth_ratelimit/admin/security.py",
        'return site == "same-origin"',
        "return True",
        "tests/admin/test_security.py",
    ),
    Breakage(
        "admin page allows inline scripts",
        "oauth_ratelimit/admin/security.py",
        "\"script-src 'self'\"",
        "\"script-src 'self' 'unsafe-inline'\"",
        "tests/admin/test_blueprint.py",
    ),
    Breakage(
        "operator without the right to change can change",
        "oauth_ratelimit/admin/blueprint.py",
        "if reason is None and not may_change(operator):",
        "if False:",
        "tests/admin/test_security.py",
    ),
    Breakage(
        "admin page is shown to somebody who is not authorised",
        "oauth_ratelimit/admin/security.py",
        'return Response("You are not authorised to see this page.\\n", status=403, mimetype="text/plain")',
        'return "nobody"',
        "tests/admin/test_blueprint.py",
    ),
    Breakage(
        "client id is not escaped in the HTML report",
        "oauth_ratelimit/report/page.py",
        "name = escape(visible_name(finding.client_id))",
        "name = visible_name(finding.client_id)",
        "tests/report/test_page.py",
    ),
    Breakage(
        "report takes every request of a client for needless",
        "oauth_ratelimit/report/findings.py",
        "self.offered - round(self.needed) if",
        "self.offered if",
        "tests/report/test_findings.py",
    ),
    Breakage(
        "replay does not count wrongly admitted requests",
        "oauth_ratelimit/replay/accuracy.py",
        "if inside >= limit:",
        "if inside > limit:",
        "tests/replay/test_accuracy.py",
    ),
    Breakage(
        "testing plugin keeps the rate limit of the application after the test",
        "oauth_ratelimit/testing.py",
        "app.extensions[EXTENSION] = former",
        "pass",
        "tests/test_pytest_plugin.py",
    ),
    Breakage(
        "report takes the lifetime of tokens from the settings",
        "oauth_ratelimit/report/findings.py",
        "None if token_lifetime_s else total.lifetime_range",
        "None",
        "tests/report/test_findings.py",
    ),
    Breakage(
        "lifetimes of issued tokens are not recorded",
        "oauth_ratelimit/flask_authlib/hooks.py",
        "    if state.client is not None:\n        state.app_limiter.record_lifetime(state.client, token)\n",
        "",
        "tests/flask_authlib/test_statistics.py",
    ),
    Breakage(
        "proposed limits have no margin for days that differ",
        "oauth_ratelimit/operations/profiles.py",
        "safe_limit=max(max(values), math.ceil(mean + DEVIATIONS * deviation))",
        "safe_limit=max(values)",
        "tests/operations/test_suggest.py",
    ),
    Breakage(
        "proposed limits take users of a wasteful client for an example",
        "oauth_ratelimit/operations/suggest.py",
        " or _wastes(*clients[profile.subject.client_id])",
        "",
        "tests/operations/test_suggest.py",
    ),
    Breakage(
        "rollout goes on although instances are behind",
        "oauth_ratelimit/operations/rollout.py",
        "beat.lag_s > MAX_LAG_INTERVALS * beat.interval_s",
        "False",
        "tests/cli/test_rollout.py",
    ),
    Breakage(
        "replay tells nobody that the address stood for the client",
        "oauth_ratelimit/cli/denials.py",
        "for note in self.facts.notes:",
        "for note in ():",
        "tests/cli/test_replay.py",
    ),
    Breakage(
        "replay forgets that idle instances synchronise, too",
        "oauth_ratelimit/replay/configured.py",
        "if last_s > instance.cycle_s > 0:",
        "if False:",
        "tests/replay/test_configured.py",
    ),
)


def run_tests(copy: Path, breakage: Breakage) -> str:
    """Run the tests of a breakage in the copy, and return ``caught`` with the test that failed, or what went wrong."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not chromium", "--tb=no"]
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.Popen(
        [*command, *breakage.tests.split()],
        cwd=copy,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        output, _ = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)  # pytest then stops the servers it has started
        process.communicate()
        return f"NOT CAUGHT: the tests did not end within {TIMEOUT_S:g} s"
    lines = output.splitlines() or [""]
    if process.returncode == 0:
        return "NOT CAUGHT"
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    if process.returncode != TESTS_FAILED:
        return f"NOT CAUGHT: the tests could not run: {(failed or lines)[-1]}"
    return f"{CAUGHT} by {failed[0].partition(' - ')[0].partition(' ')[2]}" if failed else CAUGHT


def apply(copy: Path, breakage: Breakage) -> str:
    """Break the copy, run the tests, mend the copy, and return the outcome."""
    path = copy / breakage.file
    if not path.is_file():
        return f"NOT APPLIED: there is no {breakage.file}"
    missing = [test for test in breakage.tests.split() if not (copy / test.partition("::")[0]).exists()]
    if missing:
        return f"NOT APPLIED: there is no {', '.join(missing)}"
    content = path.read_text(encoding="utf-8")
    count = content.count(breakage.old)
    if count != 1:
        return f"NOT APPLIED: the old text occurs {count} times in {breakage.file}"
    path.write_text(content.replace(breakage.old, breakage.new), encoding="utf-8")
    try:
        return run_tests(copy, breakage)
    finally:
        path.write_text(content, encoding="utf-8")


def report(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)  # noqa: T201  # speaks to a person


def main() -> int:
    """Try the breakages that the command line names, all of them if it names none."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="part of a breakage's name")
    parser.add_argument("--list", action="store_true", help="print the names and do nothing")
    arguments = parser.parse_args()
    chosen = [
        breakage
        for breakage in BREAKAGES
        if not arguments.names or any(name.lower() in breakage.name.lower() for name in arguments.names)
    ]
    if not chosen:
        parser.error(f"no breakage is called {' or '.join(arguments.names)}")
    if arguments.list:
        for breakage in chosen:
            report(breakage.name)
        return 0
    survivors = []
    with tempfile.TemporaryDirectory(prefix="breakages-") as directory:
        copy = Path(directory, "repository")
        shutil.copytree(ROOT, copy, ignore=NOT_COPIED)
        for breakage in chosen:
            begun_s = time.monotonic()
            outcome = apply(copy, breakage)
            report(f"{breakage.name}: {outcome} ({time.monotonic() - begun_s:.0f} s)")
            if not outcome.startswith(CAUGHT):
                survivors.append(breakage.name)
    report(f"{len(chosen) - len(survivors)} of {len(chosen)} breakages caught")
    for name in survivors:
        report(f"not caught: {name}")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
