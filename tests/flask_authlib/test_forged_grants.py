"""Grants that strangers send in a victim's name: each grant of the demo's server, tampered with in every way."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from authlib import __version__ as AUTHLIB

from testbed.oauth_server.database import BATCH_JOBS, PARTNER_BANK, WEB_SHOP
from testbed.oauth_server.models import GRANT_OWN_TOKEN
from tests.support import flows
from tests.support.flows import FLOWS, GrantRequest, request_by
from tests.support.sites import Site, config, protected

PROOFS = ("code", "refresh_token", "device_code", "assertion", "subject_token", "password")
ISSUED = ("authorization_code", "authorization_code_pkce", "authorization_code_openid", "refresh_token", "device_code")
REFUSED = (400, 401, 500) if AUTHLIB.startswith("1.7.") else (400, 401)  # it raises for an assertion that is no JWT
Credentials = tuple[str, str] | None


def by(sent: GrantRequest, auth: Credentials) -> GrantRequest:
    """Return the request with other credentials and without the client's name."""
    return replace(sent, auth=auth, form={name: value for name, value in sent.form.items() if name != "client_id"})


def with_form(sent: GrantRequest, change: Callable[[str, str], str | None]) -> GrantRequest:
    """Return the request with its fields changed; None leaves a field out."""
    changed = {name: change(name, value) for name, value in sent.form.items()}
    return replace(sent, form={name: value for name, value in changed.items() if value is not None})


TAMPERINGS: dict[str, Callable[[GrantRequest], GrantRequest]] = {
    "without a secret": lambda sent: replace(sent, auth=None, form={**sent.form, "client_id": sent.client_id}),
    "wrong secret": lambda sent: by(sent, (sent.client_id, "wrong")),
    "secret of another client": lambda sent: by(sent, (sent.client_id, f"{BATCH_JOBS.client_secret}x")),
    "unknown client": lambda sent: by(sent, ("nobody", "x")),
    "no client": lambda sent: by(sent, None),
    "forged signature": lambda sent: with_form(
        sent, lambda name, value: f"{value[:-8]}forged-x" if name == "assertion" else value
    ),
    "bogus proof": lambda sent: with_form(sent, lambda name, value: "bogus" if name in PROOFS else value),
    "no proof": lambda sent: with_form(sent, lambda name, value: None if name in PROOFS else value),
}


@pytest.fixture(scope="module")
def site(database: Path) -> Iterator[Site]:
    """A server that admits two tokens per client, and per client and user, in ten seconds."""
    with protected(database, config(limit=2)) as served:
        yield served


@pytest.mark.parametrize("flow", FLOWS.values(), ids=FLOWS)
def test_tampered_grant_moves_no_counter(site: Site, flow: Callable[[str], GrantRequest]) -> None:
    site.wait_for_quota()
    true = flow(site.url)
    site.wait_for_quota()
    tried = 0
    for tamper in TAMPERINGS.values():
        forged = tamper(true)
        stands_alone = forged.form.get("assertion") is not None and forged.form["assertion"] == true.form["assertion"]
        if forged != true and not stands_alone:  # an assertion names and proves its client itself
            tried += 1
            for _ in range(3):
                assert forged().status_code in REFUSED, forged

    assert tried >= 2
    assert 2 == site.remaining(true.client_id, true.username) == site.remaining(true.client_id)
    assert 200 == true().status_code
    assert 1 == site.remaining(true.client_id, true.username)


@pytest.mark.parametrize("name", ISSUED)
def test_stolen_proof_moves_no_counter(site: Site, name: str) -> None:
    """Neither of the client it was issued to nor of the thief."""
    attempt = FLOWS[name](site.url)
    site.wait_for_quota()
    stolen = by(attempt, (PARTNER_BANK.client_id, PARTNER_BANK.client_secret or ""))

    assert {400} == {stolen().status_code for _ in range(3)}
    for client_id in (attempt.client_id, PARTNER_BANK.client_id):
        assert 2 == site.remaining(client_id, attempt.username) == site.remaining(client_id)


ALICE = {"grant_type": "password", "username": "alice", "password": flows.password_of("alice")}
JOB = {"grant_type": "client_credentials"}


def own(site: Site, form: dict[str, str]) -> GrantRequest:
    return request_by(WEB_SHOP, f"{site.url}/token", form)


@pytest.mark.parametrize(
    ("form", "query", "paying"),
    [
        ({**ALICE, "client_id": "batch-jobs"}, {}, ("web-shop", "alice")),
        (ALICE, {"client_id": "batch-jobs", "username": "bob"}, ("web-shop", "alice")),
        ({**ALICE, "user": "bob", "user_id": "bob", "sub": "bob"}, {}, ("web-shop", "alice")),
        ({**JOB, "username": "alice", "client_id": "batch-jobs"}, {"username": "bob"}, ("web-shop", None)),
        ({**ALICE, "grant_type": GRANT_OWN_TOKEN}, {"username": "bob", "user": "bob"}, ("web-shop", "alice")),
        ({**JOB, "client_id": "batch-jobs", "client_secret": BATCH_JOBS.client_secret}, {}, ("web-shop", None)),
    ],
    ids=["client in the form", "query beside the form", "other words", "a job", "another grant", "two proofs"],
)
def test_only_the_proven_client_and_user_pay(
    site: Site, form: dict[str, str], query: dict[str, str], paying: tuple[str, str | None]
) -> None:
    """Names in the form or in the query do not count."""
    site.wait_for_quota()

    assert 200 == own(site, form)(params=query).status_code
    counters = {(client, user) for client in ("web-shop", "batch-jobs") for user in (None, "alice", "bob")}
    assert {paying} == {key for key in counters if site.remaining(*key) != 2}


def test_denied_client_is_denied_whatever_it_adds(database: Path) -> None:
    """Such as the name of a trusted client beside its own secret."""
    tricks: list[tuple[dict[str, str], dict[str, str]]] = [
        ({}, {"client_id": "batch-jobs"}),
        ({"client_id": "batch-jobs"}, {}),
        ({}, {"client_id": "batch-jobs", "username": "alice"}),
        ({"client_id": "batch-jobs", "username": "alice", "user": "bob"}, {}),
        ({"client_id": "WEB-SHOP", "scope": ""}, JOB),
        ({"endpoint": "revocation", "cost": "0"}, {"cost": "-1"}),
    ]
    with protected(database, config(limit=2, trusted_clients=["batch-*"])) as site:
        answers = [own(site, {**JOB, **more})(params=query) for more, query in tricks]

    assert [200, 200, 429, 429, 429, 429] == [answer.status_code for answer in answers]
    assert all("Retry-After" in answer.headers for answer in answers[2:])
