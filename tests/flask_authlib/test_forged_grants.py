"""Grants that strangers send in a victim's name: each grant of the demo's server, tampered with in every way."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import requests

from demo.database import BATCH_JOBS, PARTNER_BANK, WEB_SHOP, seed
from tests.support import flows
from tests.support.flows import FLOWS, TIMEOUT_S, GrantRequest
from tests.support.sites import Site, config, protected

PROOFS = ("code", "refresh_token", "device_code", "assertion", "subject_token", "password")
ISSUED = ("authorization_code", "authorization_code_pkce", "authorization_code_openid", "refresh_token", "device_code")
Credentials = tuple[str, str] | None


@dataclass(frozen=True)
class Sent:
    """A token request, not sent yet."""

    url: str
    form: dict[str, str]
    auth: Credentials = None

    def send(self, **more: Any) -> requests.Response:
        """Send it."""
        return requests.post(self.url, data=self.form, auth=self.auth, timeout=TIMEOUT_S, **more)

    @property
    def client_id(self) -> str:
        """The client that it names."""
        return self.auth[0] if self.auth else self.form.get("client_id", "")

    def by(self, auth: Credentials) -> "Sent":
        """Return it under other credentials."""
        return replace(self, auth=auth, form={name: value for name, value in self.form.items() if name != "client_id"})


def last_request(attempt: GrantRequest, monkeypatch: pytest.MonkeyPatch) -> Sent:
    """Return the request that an attempt would send."""
    seen: list[Sent] = []

    def record(url: str, *, data: dict[str, str], auth: Credentials = None, timeout: float) -> None:
        seen.append(Sent(url, dict(data), auth))

    with monkeypatch.context() as patch:
        patch.setattr(flows.requests, "post", record)
        attempt()
    return seen[0]


TAMPERINGS: dict[str, Callable[[Sent], Sent]] = {
    "without a secret": lambda sent: replace(sent, auth=None, form={**sent.form, "client_id": sent.client_id}),
    "wrong secret": lambda sent: sent.by((sent.client_id, "wrong")),
    "secret of another client": lambda sent: sent.by((sent.client_id, f"{BATCH_JOBS.client_secret}x")),
    "unknown client": lambda sent: sent.by(("nobody", "x")),
    "no client": lambda sent: sent.by(None),
    "forged signature": lambda sent: replace(
        sent,
        form={name: f"{value[:-8]}forged-x" if name == "assertion" else value for name, value in sent.form.items()},
    ),
    "bogus proof": lambda sent: replace(
        sent, form={name: "bogus" if name in PROOFS else value for name, value in sent.form.items()}
    ),
    "no proof": lambda sent: replace(
        sent, form={name: value for name, value in sent.form.items() if name not in PROOFS}
    ),
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server that admits two tokens per client, and per client and user, in ten seconds."""
    path = tmp_path_factory.mktemp("traps") / "demo.sqlite3"
    seed(path)
    with protected(path, config(limit=2)) as served:
        yield served


@pytest.mark.parametrize("flow", FLOWS.values(), ids=FLOWS)
def test_tampered_grant_moves_no_counter(
    site: Site, flow: Callable[[str], GrantRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    site.wait_for_quota()
    attempt = flow(site.url)
    site.wait_for_quota()
    true = last_request(attempt, monkeypatch)
    tried = 0
    for tamper in TAMPERINGS.values():
        forged = tamper(true)
        stands_alone = forged.form.get("assertion") is not None and forged.form["assertion"] == true.form["assertion"]
        if forged != true and not stands_alone:  # an assertion names and proves its client itself
            tried += 1
            for _ in range(3):
                # Authlib 1.7 answers 500 to an assertion that is no JWT.
                assert forged.send().status_code in (400, 401, 500), forged

    assert tried >= 2
    assert 2 == site.remaining(attempt.client_id, attempt.username) == site.remaining(attempt.client_id)
    assert 200 == attempt().status_code
    assert 1 == site.remaining(attempt.client_id, attempt.username)


@pytest.mark.parametrize("name", ISSUED)
def test_stolen_proof_moves_no_counter(site: Site, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither of the client it was issued to nor of the thief."""
    attempt = FLOWS[name](site.url)
    site.wait_for_quota()
    stolen = last_request(attempt, monkeypatch).by((PARTNER_BANK.client_id, PARTNER_BANK.client_secret or ""))

    assert {400} == {stolen.send().status_code for _ in range(3)}
    for client_id in (attempt.client_id, PARTNER_BANK.client_id):
        assert 2 == site.remaining(client_id, attempt.username) == site.remaining(client_id)


OWN = (WEB_SHOP.client_id, WEB_SHOP.client_secret or "")
ALICE = {"grant_type": "password", "username": "alice", "password": flows.password_of("alice")}
JOB = {"grant_type": "client_credentials"}


@pytest.mark.parametrize(
    ("form", "query", "paying"),
    [
        ({**ALICE, "client_id": "batch-jobs"}, {}, ("web-shop", "alice")),
        (ALICE, {"client_id": "batch-jobs", "username": "bob"}, ("web-shop", "alice")),
        ({**ALICE, "user": "bob", "user_id": "bob", "sub": "bob"}, {}, ("web-shop", "alice")),
        ({**JOB, "username": "alice", "client_id": "batch-jobs"}, {"username": "bob"}, ("web-shop", None)),
    ],
    ids=["client in the form", "query beside the form", "other words for a user", "a job"],
)
def test_only_the_proven_client_and_user_pay(
    site: Site, form: dict[str, str], query: dict[str, str], paying: tuple[str, str | None]
) -> None:
    """Names in the form or in the query do not count."""
    site.wait_for_quota()

    assert 200 == Sent(f"{site.url}/token", form, OWN).send(params=query).status_code
    counters = {(client, user) for client in ("web-shop", "batch-jobs") for user in (None, "alice", "bob")}
    assert {paying} == {key for key in counters if site.remaining(*key) != 2}


def test_denied_client_is_denied_whatever_it_adds(site: Site) -> None:
    site.wait_for_quota()
    assert [200, 200] == [Sent(f"{site.url}/token", JOB, OWN).send().status_code for _ in range(2)]
    tricks: list[tuple[dict[str, str], dict[str, str]]] = [
        ({}, {"client_id": "batch-jobs", "username": "alice"}),
        ({"client_id": "batch-jobs", "username": "alice", "user": "bob"}, {}),
        ({"client_id": "WEB-SHOP", "scope": ""}, JOB),
        ({"endpoint": "revocation", "cost": "0"}, {"cost": "-1"}),
    ]
    for more, query in tricks:
        denied = Sent(f"{site.url}/token", {**JOB, **more}, OWN).send(params=query)
        assert 429 == denied.status_code, denied.text
        assert "Retry-After" in denied.headers


def test_second_grant_type_in_the_query_moves_one_counter(site: Site) -> None:
    """Authlib decides which of the two it takes."""
    site.wait_for_quota()

    assert 200 == Sent(f"{site.url}/token", ALICE, OWN).send(params=JOB).status_code
    assert {1, 2} == {site.remaining("web-shop"), site.remaining("web-shop", "alice")}


@pytest.mark.parametrize("form", [{"client_id": "batch-jobs", "client_secret": BATCH_JOBS.client_secret or ""}])
def test_only_one_of_two_proven_clients_pays(site: Site, form: dict[str, str]) -> None:
    site.wait_for_quota()

    answer = Sent(f"{site.url}/token", {**JOB, **form}, OWN).send()

    assert 200 == answer.status_code
    assert (1, 2) == (site.remaining("web-shop"), site.remaining("batch-jobs"))


def test_naming_a_public_client_moves_no_counter(site: Site) -> None:
    site.wait_for_quota()
    for _ in range(5):
        for form in (
            {"grant_type": "authorization_code", "code": "bogus"},
            {"grant_type": "refresh_token", "refresh_token": "bogus"},
            {"grant_type": flows.GRANT_DEVICE_CODE, "device_code": "bogus"},
            ALICE,
        ):
            status = Sent(f"{site.url}/token", {**form, "client_id": "mobile-app"}).send().status_code
            assert status in (400, 401), form

    assert 2 == site.remaining("mobile-app") == site.remaining("mobile-app", "alice")


@pytest.mark.parametrize("client_id", ["mobile-app", "web-shop"])
def test_device_authorization_counts_nobody(tmp_path: Path, client_id: str) -> None:
    database = tmp_path / "demo.sqlite3"
    seed(database)
    limits = {"endpoints": {"device_authorization": {"limits": {"client": ["1/minute"]}}}}
    with protected(database, config(limit=2, **limits)) as site:
        form = {"client_id": client_id, "scope": "profile"}
        statuses = {
            requests.post(f"{site.url}/device_authorization", data=form, timeout=TIMEOUT_S).status_code
            for _ in range(3)
        }
        remaining = site.app_limiter.limiter.peek(client_id, endpoint="device_authorization").remaining

    assert 429 not in statuses
    assert 1 == remaining
