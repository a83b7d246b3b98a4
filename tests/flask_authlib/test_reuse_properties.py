"""Whatever clients send, nobody gets a token that is not his, and nobody gets tokens without end."""

from collections import defaultdict
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from structlog.testing import capture_logs

from oauth_ratelimit import OAuthRateLimit
from tests.support.reusing import LIMIT, MAX_AGE_S, METHODS, reuse_site

CLIENTS = st.sampled_from(["a", "b"])
NAMES = ["resource", "audience", "requested_token_type", "foo"]
BASE: dict[str, Any] = {"path": "/token", "host": "one.example", "method": METHODS[0], "scope": "openid"}
VARIATIONS: list[dict[str, Any]] = [
    *({"path": path} for path in ("/other", "/token/")),
    *({"host": host} for host in ("two.example", "one.example:8080", "one.example/root")),
    *({"scope": scope} for scope in ("", "profile", "openid profile", "profile openid", "admin", "openid admin")),
    *({name: value} for name in NAMES for value in ("x", "y")),
    *({"query": {name: value}} for name in NAMES for value in ("x", "y")),
    *({"headers": {"DPoP": proof}} for proof in ("one", "two")),
    {"method": METHODS[1]},
    {"environ": {"SSL_CLIENT_CERT": "some-certificate"}},
]
REQUESTS = st.one_of(st.just({}), st.sampled_from(VARIATIONS)).map(lambda variation: {**BASE, **variation})


class Clients(RuleBasedStateMachine):
    """Clients that ask, revoke and wait, while operators and the application change what they may do."""

    def __init__(self) -> None:
        super().__init__()
        self.active: bool | None = True
        self.stack = ExitStack()
        self.logs = self.stack.enter_context(capture_logs())
        self.site = self.stack.enter_context(reuse_site(is_token_active=lambda _: self.is_active()))
        self.minted: dict[str, list[float]] = defaultdict(list)
        self.taken_back: dict[str, int] = defaultdict(int)

    def is_active(self) -> bool:
        if self.active is None:
            raise RuntimeError("the application's database is away")
        return self.active

    def teardown(self) -> None:
        self.stack.close()

    @rule(client_id=CLIENTS, asked=REQUESTS)
    def ask(self, client_id: str, asked: dict[str, Any]) -> None:
        self.ask_and_check(client_id, asked)

    @rule(client_id=CLIENTS, asked=REQUESTS, other=REQUESTS)
    def ask_often(self, client_id: str, asked: dict[str, Any], other: dict[str, Any]) -> None:
        for each in (*[BASE] * LIMIT, asked, other, BASE, asked, other):
            self.ask_and_check(client_id, each)

    @rule(client_id=CLIENTS, asked=REQUESTS, place=st.sampled_from(["generate", "save", "view"]))
    def ask_in_vain(self, client_id: str, asked: dict[str, Any], place: str) -> None:
        self.site.break_at = place
        self.ask_and_check(client_id, asked)
        self.site.break_at = ""

    def ask_and_check(self, client_id: str, asked: dict[str, Any]) -> None:
        site = self.site
        before, saved_count = set(site.issued), len(site.saved)
        response = site.ask(client_id, **asked)
        new = set(site.issued) - before
        assert len(new) <= 1
        if self.is_taken_back(client_id, is_failed=response.status_code == 500 and len(site.saved) == saved_count):
            self.taken_back[client_id] += 1
        else:
            self.minted[client_id] += [site.clock()] * len(new)
        if response.status_code != 200:
            return
        answer = response.get_json()
        token = site.issued[answer["access_token"]]
        age_s = site.clock() - token.at_s
        assert token.purpose == site.purposes[-1]
        assert token.client_id == client_id
        assert not token.is_revoked
        assert 0 < answer["expires_in"] <= token.lifetime_s - age_s
        assert "Retry-After" not in response.headers
        if not new:  # it was given out again
            assert self.active is True
            assert age_s < MAX_AGE_S
            assert not {"headers", "environ"} & asked.keys()
            assert "refresh_token" not in answer
            assert len(site.saved) == saved_count
            assert answer["expires_in"] >= token.lifetime_s // 10

    def is_taken_back(self, client_id: str, *, is_failed: bool) -> bool:
        """Return whether a request does not count, because the application failed before it saved a token."""
        is_within = len(self.minted[client_id]) < LIMIT
        return is_failed and is_within and self.taken_back[client_id] < LIMIT

    @rule(seconds=st.sampled_from([1, 19, 299, 300]))
    def wait(self, seconds: int) -> None:
        self.site.clock.advance(seconds)

    @rule(data=st.data())
    def revoke(self, data: st.DataObject) -> None:
        if self.site.issued:
            token = data.draw(st.sampled_from(sorted(self.site.issued)))
            assert self.site.revoke(token).status_code == 200

    @rule(client_id=CLIENTS, scope=st.sampled_from(["openid", "profile", "openid profile", "openid admin"]))
    def change_scope(self, client_id: str, scope: str) -> None:
        self.site.change(client_id, scope=scope)

    @rule(client_id=CLIENTS, secret=st.sampled_from(["new", "newer"]))
    def rotate_secret(self, client_id: str, secret: str) -> None:
        self.site.change(client_id, client_secret=secret)
        assert self.site.ask(client_id, secret="an-old-one").status_code == 401

    @rule(client_id=CLIENTS)
    def forget(self, client_id: str) -> None:
        with self.site.app.app_context():
            OAuthRateLimit.forget_tokens(client_id)

    @rule(active=st.sampled_from([True, True, False, None]))
    def change_activity(self, active: bool | None) -> None:
        self.active = active

    @rule(lifetime_s=st.sampled_from([20, 400, 3600]), extra=st.sampled_from([{}, {}, {"refresh_token": "stronger"}]))
    def change_tokens(self, lifetime_s: int, extra: dict[str, Any]) -> None:
        self.site.lifetime_s, self.site.extra = lifetime_s, extra

    @invariant()
    def nobody_mints_without_end(self) -> None:
        for times in self.minted.values():
            above = times[LIMIT:]  # the window is a day
            assert all(later - earlier >= MAX_AGE_S for earlier, later in pairwise(above))

    @invariant()
    def no_log_has_a_token(self) -> None:
        assert "token-" not in repr(self.logs)


TestClients = pytest.mark.slow(Clients.TestCase)
TestClients.settings = settings(
    max_examples=80, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
