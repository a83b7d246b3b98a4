"""The demo from beginning to end: a dry run, reuse, enforce, one denial in detail, and the counts in MongoDB."""

import time
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone

from rich.markup import escape

from demo.display import Display
from demo.replay import Replay, TokenClient
from demo.tally import Key, Outcome, Tally, read_counts
from testbed.deployment import DENY, DRY_RUN, ENFORCE, REUSE, Deployment, Instance, deploy
from testbed.trace import APPS, LATECOMER, MACHINES, TRUSTED, Caller, Hit, assign, hits_from, schedule

FIRST_HIT = 6000  # a busy hour with a few hosts that exceed the limit
SERVER_COUNT = 3
PAUSE_S = 0.2  # between two requests to a server; it reads what the others have counted within milliseconds
MAX_TRIES = 200  # until one server denies; the limit is 40

_FLORIDA = timezone(timedelta(hours=-4))


class Demo:
    """One run of the demo.

    Args:
        display: Shows it.
        request_count: Requests of the trace to replay, three times.
        speed: Replay speed, as a multiple of the recorded one.
    """

    def __init__(self, display: Display, *, request_count: int, speed: float) -> None:
        self._display = display
        self._hits = hits_from(FIRST_HIT, request_count)
        self._callers = assign(self._hits)
        self._calls = schedule(self._hits, self._callers, speed=speed)
        self._speed = speed
        self.tallies: list[Tally] = []

    def run(self) -> bool:
        """Run it, and return whether every check passed."""
        self._display.title("oauth_ratelimit: one limit for three OAuth servers, shared through MongoDB")
        clients = {*APPS, *(caller.client for caller in (*MACHINES, LATECOMER))}
        users = {caller.user for caller in self._callers.values() if caller.user}
        with deploy(instance_count=SERVER_COUNT, clients=clients, users=users, marks=True) as deployment:
            self._introduce(deployment)
            self._dry_run(deployment)
            self._reuse(deployment)
            self._enforce(deployment)
            is_admitted_again = self._show_denial(deployment)
            deployment.stop()
            return self.check(deployment, is_admitted_again=is_admitted_again)

    def _introduce(self, deployment: Deployment) -> None:
        first, last = (datetime.fromtimestamp(hit.at_s, _FLORIDA) for hit in (self._hits[0], self._hits[-1]))
        servers = ", ".join(instance.address for instance in deployment.instances)
        self._display.facts(
            [
                ("MongoDB", deployment.mongodb),
                ("servers", f"gunicorn with Flask and Authlib on {servers}"),
                ("limits", "40 tokens per 5 s for each client, 20 per 5 s for each user, 100,000 per hour for both"),
                ("traffic", f"NASA web server, {first:%-d %B %Y, %H:%M} to {last:%H:%M}: {_size(self._hits)}"),
                ("", f"{self._speed:g} times faster, each request to a server chosen at random"),
            ]
        )
        with TokenClient(Tally()) as client:  # a server's first request is slow and would disturb the replay
            for instance in deployment.instances:
                client.request(instance, MACHINES[0])

    def _dry_run(self, deployment: Deployment) -> None:
        self._display.section(
            1, "Dry run", "Every request gets a token. The limiter decides all the same, and logs what it would deny."
        )
        self._replay(deployment, over="would deny")

    def _reuse(self, deployment: Deployment) -> None:
        self._display.section(
            2,
            "Reuse",
            f"Two lines of {deployment.config_path.name} change while the servers run. Above its limit a client without"
            " users now gets the token that it has, and at most one new one from each server:",
        )
        self._change(deployment, (DRY_RUN, ENFORCE), (DENY, REUSE))
        self._replay(deployment, over="denied")

    def _enforce(self, deployment: Deployment) -> None:
        self._display.section(3, "Enforce", "Once its owner has been told, every client can be denied:")
        self._change(deployment, (REUSE, DENY))
        self._replay(deployment, over="denied")

    def _change(self, deployment: Deployment, *changes: tuple[str, str]) -> None:
        lines = (f"[red]- {escape(old)}[/]\n[green]+ {escape(new)}[/]" for old, new in changes)
        self._display.line("\n".join(lines))
        applied_s = deployment.change(*changes)
        self._display.line(f"All servers applied it within {applied_s:.1f} s. The same traffic again:")

    def _show_denial(self, deployment: Deployment) -> bool:
        """Bring one client over its limit at one server, try the others, and return whether Retry-After was true."""
        caller = LATECOMER
        first, *others = deployment.instances
        self._display.section(
            4,
            "A denial in detail",
            f"Another client, {caller.client_id}, sends one request to {_names(others)}, and then requests to"
            f" {first.name} until it is denied:",
        )
        with TokenClient(self._open_tally()) as client:
            for other in others:
                client.request(other, caller)
            for _ in range(MAX_TRIES):
                denier, answer = first, client.request(first, caller)
                if answer.outcome is Outcome.DENIED:
                    break
            self._display.answer(answer)
            for other in others:
                answers = [client.request(other, caller)]
                if answers[0].outcome is not Outcome.DENIED:
                    time.sleep(PAUSE_S)
                    answers.append(client.request(other, caller))
                between = f" before it has read what the others counted, and {PAUSE_S:g} s later "
                statuses = between.join(str(each.status) for each in answers)
                if answers[-1].outcome is Outcome.DENIED:
                    denier, answer = other, answers[-1]
                    statuses += f" with Retry-After: {answer.header('Retry-After')}"
                self._display.line(f"{other.name}, which has served it once, answers {statuses}.")
            return self._retry(client, denier, caller, retry_after_s=int(answer.header("Retry-After")))

    def _retry(self, client: TokenClient, instance: Instance, caller: Caller, *, retry_after_s: int) -> bool:
        self._display.line(f"The client waits {retry_after_s} s, as {instance.name} asked it to ...")
        time.sleep(retry_after_s)
        answer = client.request(instance, caller)
        self._display.line(f"... and tries again: {answer.status} {answer.reason}")
        return answer.outcome is Outcome.ALLOWED

    def check(self, deployment: Deployment, *, is_admitted_again: bool) -> bool:
        """Compare the answers with MongoDB, show the result, and return whether every promise was kept."""
        counted: Counter[Key] = sum((tally.counted() for tally in self.tallies), Counter())
        stored = read_counts(deployment.counters)
        trusted = [client for tally in self.tallies for client in tally.clients() if client.client_id == TRUSTED]
        trusted_count = sum(client.request_count for client in trusted)
        trusted_over_count = sum(client.denied_count for client in trusted)
        self._display.section(
            5,
            "Is every counted request in MongoDB, exactly once?",
            "SIGTERM has stopped the servers, which flushed their counters. An admitted request counts, unless it was "
            "over a limit in the dry run or came from a trusted client. The demo compares the answers that it received "
            "with MongoDB:",
        )
        self._display.counts(_compare(counted, stored))
        is_equal = counted == stored
        self._display.check(
            f"MongoDB holds what was counted, for every client and user: {stored.total():,} = {counted.total():,}"
            if is_equal
            else f"MongoDB holds {stored.total():,} requests, but {counted.total():,} were counted",
            holds=is_equal,
        )
        self._display.check(
            f"{TRUSTED} is trusted: {trusted_count:,} requests in all replays, {trusted_over_count:,} denied",
            holds=trusted_over_count == 0,
        )
        reused = sum(tally.total(Outcome.REUSED) for tally in self.tallies)
        foreign = sum(tally.foreign_count() for tally in self.tallies)
        is_own = reused > 0 and foreign == 0
        self._display.check(f"{reused:,} requests got a token again that the same client had got before", holds=is_own)
        self._display.check("The denied client was admitted after Retry-After", holds=is_admitted_again)
        return is_equal and trusted_over_count == 0 and is_own and is_admitted_again

    def _replay(self, deployment: Deployment, *, over: str) -> None:
        tally = self._open_tally()
        with self._display.progress(tally, len(self._calls), over=over) as progress:
            took_s = Replay(self._calls, deployment.instances, tally).run(progress.update)
        new_count = sum(client.new_count for client in tally.clients())
        self._display.line(f"\n{tally.total():,} requests got {new_count:,} new tokens in {took_s:.1f} s.")

    def _open_tally(self) -> Tally:
        tally = Tally()
        self.tallies.append(tally)
        return tally


def _names(instances: Sequence[Instance]) -> str:
    return " and ".join(instance.name for instance in instances)


def _size(hits: Sequence[Hit]) -> str:
    return f"{len(hits):,} requests of {len({hit.host for hit in hits}):,} hosts"


def _compare(counted: Counter[Key], stored: Counter[Key]) -> list[tuple[str, int, int, int]]:
    """Return for each client the number of its keys and both counts."""
    keys = counted.keys() | stored.keys()
    rows = []
    for client_id in sorted({client_id for client_id, _ in keys}):
        own = [key for key in keys if key[0] == client_id]
        rows.append((client_id, len(own), sum(counted[key] for key in own), sum(stored[key] for key in own)))
    return rows
