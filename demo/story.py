"""The demo from beginning to end: dry run, enforce, one denial from close by, and the sum of it all."""

import time
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone

from demo.audit import read_counts
from demo.cast import APPS, LATECOMER, MACHINES, TRUSTED, Caller, assign, schedule
from demo.display import Display
from demo.instance import Instance, stop_all
from demo.replay import Replay, TokenClient
from demo.stage import Stage, set_stage
from demo.tally import Key, Outcome, Tally
from demo.trace import Hit, stretch

FIRST_HIT = 6000  # a busy hour with a few hosts that stand out
SERVER_COUNT = 3
HEARD_S = 1.0  # four sync intervals: by then every server knows what the others have counted
MAX_TRIES = 200  # until one server denies; the limit is 40

_FLORIDA = timezone(timedelta(hours=-4))


class Story:
    """One run of the demo.

    Args:
        display: Where it is told.
        request_count: Requests of the trace to replay, twice.
        speed: How many times faster than recorded.
    """

    def __init__(self, display: Display, *, request_count: int, speed: float) -> None:
        self._display = display
        self._hits = stretch(FIRST_HIT, request_count)
        self._cast = assign(self._hits)
        self._calls = schedule(self._hits, self._cast, speed=speed)
        self._speed = speed
        self._tallies: list[Tally] = []

    def tell(self) -> bool:
        """Run it, and return whether everything was as promised."""
        self._display.title("oauth_ratelimit: one limit over three OAuth servers, shared through MongoDB")
        clients = [*APPS, *(caller.client for caller in (*MACHINES, LATECOMER))]
        users = {caller.user for caller in self._cast.values() if caller.user}
        with set_stage("demo.witness:app", instance_count=SERVER_COUNT, clients=clients, users=users) as stage:
            self._introduce(stage)
            self._dry_run(stage)
            self._enforce(stage)
            is_admitted_again = self._look_closer(stage)
            stop_all(stage.instances)
            return self._conclude(stage, is_admitted_again=is_admitted_again)

    def _introduce(self, stage: Stage) -> None:
        first, last = (datetime.fromtimestamp(hit.at_s, _FLORIDA) for hit in (self._hits[0], self._hits[-1]))
        servers = ", ".join(instance.address for instance in stage.instances)
        self._display.facts(
            [
                ("MongoDB", stage.mongodb),
                ("servers", f"gunicorn with Flask and Authlib on {servers}"),
                ("limits", "40 tokens per 5 s and client; for users 20 per 5 s and user; and 100,000 per hour"),
                ("traffic", f"NASA web server, {first:%-d %B %Y, %H:%M} to {last:%H:%M}: {_size(self._hits)}"),
                ("", f"{self._speed:g} times faster, each request to a server chosen at random"),
            ]
        )
        with TokenClient(Tally()) as client:  # a server's first request is slow: not in the middle of the replay
            for instance in stage.instances:
                client.ask(instance, MACHINES[0])

    def _dry_run(self, stage: Stage) -> None:
        self._display.act(
            1, "Dry run", "Everybody gets a token. The limiter decides all the same, and says whom it would deny."
        )
        self._replay(stage, over="would be denied")

    def _enforce(self, stage: Stage) -> None:
        self._display.act(2, "Enforce", f"In {stage.config_path.name}, while the servers run:")
        self._display.say("[red]- mode: dry-run[/]\n[green]+ mode: enforce[/]")
        taken_over_s = stage.enforce()
        self._display.say(f"All servers have taken it over after {taken_over_s:.1f} s. The same traffic again:")
        self._replay(stage, over="denied (429)")

    def _look_closer(self, stage: Stage) -> bool:
        """Let one client run into its limit at one server, ask the others, and come back when told to."""
        caller = LATECOMER
        first, *others = stage.instances
        self._display.act(
            3,
            "What a denied client sees",
            f"Another client, {caller.client_id}, asks the other servers once and {first.name} until it is denied:",
        )
        with TokenClient(self._open_tally()) as client:
            for other in others:
                client.ask(other, caller)
            for _ in range(MAX_TRIES):
                denier, answer = first, client.ask(first, caller)
                if answer.outcome is Outcome.DENIED:
                    break
            self._display.answer(answer)
            time.sleep(HEARD_S)
            for other in others:
                heard = client.ask(other, caller)
                wait = f", Retry-After: {heard.header('Retry-After')}" if heard.outcome is Outcome.DENIED else ""
                self._display.say(
                    f"{HEARD_S:g} s later the same client at {other.name}, which has seen one request of it:"
                    f" {heard.status}{wait}"
                )
                if heard.outcome is Outcome.DENIED:
                    denier, answer = other, heard
            return self._come_back(client, denier, caller, retry_after_s=int(answer.header("Retry-After")))

    def _come_back(self, client: TokenClient, instance: Instance, caller: Caller, *, retry_after_s: int) -> bool:
        self._display.say(f"It waits for {retry_after_s} s, as Retry-After of {instance.name} says ...")
        time.sleep(retry_after_s)
        answer = client.ask(instance, caller)
        self._display.say(f"... and asks again: {answer.status} {answer.reason}")
        return answer.outcome is Outcome.ALLOWED

    def _conclude(self, stage: Stage, *, is_admitted_again: bool) -> bool:
        counted: Counter[Key] = sum((tally.counted() for tally in self._tallies), Counter())
        stored = read_counts(stage.counters)
        trusted = [line for tally in self._tallies for line in tally.lines() if line.client_id == TRUSTED]
        trusted_count = sum(line.request_count for line in trusted)
        trusted_over_count = sum(line.over_count for line in trusted)
        self._display.act(
            4,
            "Does MongoDB hold every counted request, exactly once?",
            "The servers were stopped (SIGTERM), which flushes. Counted are admitted requests, without those over a "
            "limit in the dry run and those of trusted clients. The demo has added up the answers, one by one:",
        )
        self._display.counts(_compare(counted, stored))
        is_equal = counted == stored
        self._display.check(
            "MongoDB's counts equal the counted requests, for every client and user:"
            f" {stored.total():,} = {counted.total():,}"
            if is_equal
            else f"MongoDB's counts differ: {stored.total():,} for {counted.total():,} counted requests",
            holds=is_equal,
        )
        self._display.check(
            f"{TRUSTED} is trusted: {trusted_count:,} requests in both replays, {trusted_over_count:,} denied",
            holds=trusted_over_count == 0,
        )
        self._display.check("a denied client was admitted again after Retry-After", holds=is_admitted_again)
        return is_equal and trusted_over_count == 0 and is_admitted_again

    def _replay(self, stage: Stage, *, over: str) -> None:
        tally = self._open_tally()
        with self._display.replay(tally, len(self._calls), over=over) as progress:
            took_s = Replay(self._calls, stage.instances, tally).run(progress.update)
        token_count = tally.total() - tally.total(Outcome.DENIED)
        self._display.say(f"\n{tally.total():,} requests, {token_count:,} tokens, in {took_s:.1f} s.")

    def _open_tally(self) -> Tally:
        tally = Tally()
        self._tallies.append(tally)
        return tally


def _size(hits: Sequence[Hit]) -> str:
    return f"{len(hits):,} requests of {len({hit.host for hit in hits}):,} hosts"


def _compare(counted: Counter[Key], stored: Counter[Key]) -> list[tuple[str, int, int, int]]:
    """Return, per client, the number of its keys and both counts."""
    keys = counted.keys() | stored.keys()
    rows = []
    for client_id in sorted({client_id for client_id, _ in keys}):
        own = [key for key in keys if key[0] == client_id]
        rows.append((client_id, len(own), sum(counted[key] for key in own), sum(stored[key] for key in own)))
    return rows
