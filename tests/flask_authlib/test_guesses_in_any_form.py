"""What Authlib checks is counted before, in whatever form it comes, and is wrong unless it turned out right."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from authlib.oauth2 import OAuth2Error
from authlib.oauth2.rfc6749.errors import InvalidClientError, InvalidGrantError, UnauthorizedClientError
from flask import abort, current_app
from joserfc import jwt
from joserfc.jwk import OctKey
from structlog.testing import capture_logs

from tests.support.any_form import (
    ADDRESS_LIMIT,
    CLIENTS,
    LIMIT,
    MANY,
    PASSWORD_FORMS,
    PUBLIC,
    REDIRECT_URI,
    RIGHT,
    SECRET,
    AnyForm,
    ClientCredentialsGrant,
    Locked,
    Server,
    any_form,
)
from tests.support.guarded import ELSEWHERE

CROSS_SITE = {"Sec-Fetch-Site": "cross-site"}


@pytest.fixture
def site() -> Iterator[AnyForm]:
    with any_form() as made:
        yield made


def statuses(send: Callable[[int], Any], count: int = MANY) -> Counter[int]:
    return Counter(send(number).status_code for number in range(count))


def raising(error: Exception) -> Callable[[], Any]:
    def fail() -> Any:
        raise error

    return fail


# Passwords.


@pytest.mark.parametrize("form", PASSWORD_FORMS)
def test_password_is_counted_in_whatever_form_it_comes(site: AnyForm, form: str) -> None:
    assert statuses(lambda _: site.login(form)) == {400: LIMIT, 429: MANY - LIMIT}
    assert site.checked == ["alice"] * LIMIT
    assert site.login(form, RIGHT).status_code == 429
    assert site.login(form, RIGHT, address=ELSEWHERE).status_code == 200


WRONG: dict[str, tuple[Callable[[], Any], int]] = {
    "no user": (lambda: None, 400),
    "false": (lambda: False, 400),
    "invalid_client": (raising(InvalidClientError()), 400),
    "unauthorized_client": (raising(UnauthorizedClientError()), 400),
    "a code of its own": (raising(OAuth2Error("password_expired")), 400),
    "abort": (lambda: abort(401), 401),
    "an exception of its own": (raising(Locked()), 423),
}


@pytest.mark.parametrize(("on_wrong", "status"), WRONG.values(), ids=WRONG)
def test_anything_but_a_user_is_a_wrong_password(site: AnyForm, on_wrong: Callable[[], Any], status: int) -> None:
    site.on_wrong = on_wrong

    assert statuses(lambda _: site.login()) == {status: LIMIT, 429: MANY - LIMIT}
    assert len(site.checked) == LIMIT


@pytest.mark.parametrize(
    "on_wrong", [raising(RuntimeError()), lambda: abort(503), raising(OAuth2Error("x"))], ids=["bug", "abort", "OAuth"]
)
def test_failure_of_the_server_is_released_but_not_without_end(
    site: AnyForm, monkeypatch: pytest.MonkeyPatch, on_wrong: Callable[[], Any]
) -> None:
    """A guesser may be able to cause it at will."""
    monkeypatch.setattr(OAuth2Error, "status_code", 500)
    site.on_wrong = on_wrong

    found = statuses(lambda _: site.login())
    assert found[429] == MANY - 2 * LIMIT
    assert len(site.checked) == 2 * LIMIT


def test_users_are_not_denied_after_the_server_has_failed(site: AnyForm) -> None:
    site.on_wrong = raising(RuntimeError())
    assert statuses(lambda _: site.login(), LIMIT) == {500: LIMIT}
    site.on_wrong = lambda: None

    assert statuses(lambda _: site.login(password=RIGHT)) == {200: MANY}
    assert statuses(lambda _: site.login(), LIMIT + 1) == {400: LIMIT, 429: 1}


# Secrets.

SECRET_FORMS: dict[str, Callable[[int], dict[str, Any]]] = {
    "form": lambda n: {"data": {"client_id": "confidential", "client_secret": f"guess {n}"}},
    "json": lambda n: {"json": {"client_id": "confidential", "client_secret": f"guess {n}"}},
    "fields of its own": lambda n: {"json": {"id": "confidential", "secret": f"guess {n}"}},
    "the name in the query, too": lambda n: {
        "json": {"id": "confidential", "secret": f"guess {n}"},
        "query_string": {"client_id": "confidential"},
    },
}


@pytest.mark.parametrize("fields", SECRET_FORMS.values(), ids=SECRET_FORMS)
def test_secret_is_counted_in_whatever_form_it_comes(site: AnyForm, fields: Callable[[int], dict[str, Any]]) -> None:
    def guess(number: int) -> Any:
        sent = fields(number)
        return site.send(
            **{**sent, "query_string": {"grant_type": "client_credentials", **sent.get("query_string", {})}}
        )

    assert statuses(guess)[429] == MANY - LIMIT
    assert site.checked.count("confidential") <= LIMIT


def test_secrets_of_many_clients_are_bounded_by_the_address(site: AnyForm) -> None:
    """Also those of clients that nobody knows: they leave as many counters as the bound."""

    def guess(number: int) -> Any:
        return site.send(json={"grant_type": "client_credentials", "id": f"made-up-{number}", "secret": "x"})

    assert statuses(guess)[429] == MANY - ADDRESS_LIMIT
    assert site.key_count <= ADDRESS_LIMIT + 1


# What the application checks where the guard does not see it.


def asks(validate: Callable[[Any], None]) -> Callable[[Any], Any]:
    """Return a function that gives a grant for passwords another way to validate its request."""

    def change(grant: Any) -> Any:
        is_password = grant.GRANT_TYPE == "password"
        return type(grant.__name__, (grant,), {"validate_token_request": validate}) if is_password else grant

    return change


def validated(grant: Any, check: Callable[[Any, str, str], Any]) -> None:
    grant.request.client = grant.authenticate_token_endpoint_client()
    grant.request.user = check(grant, grant.request.fields["username"], grant.request.fields["password"])
    if not grant.request.user:
        raise InvalidGrantError


def by_class(grant: Any) -> None:
    validated(grant, type(grant).authenticate_user)


def by_itself(grant: Any) -> None:
    validated(grant, lambda _, name, password: current_app.extensions["site"].authenticate_user(name, password))


def by_helper(grant: Any) -> None:
    validated(grant, lambda own, name, password: getattr(own, "authenticate_user")(name, password))  # noqa: B009


class Proxy:
    """Stands for a grant, as an object that is registered in place of its class."""

    def __init__(self, made: Any) -> None:
        self.made = made

    def __getattr__(self, name: str) -> Any:
        return getattr(self.made, name)

    def __call__(self, *args: Any) -> Any:
        return type(self)(self.made(*args))


class OpaqueProxy(Proxy):
    def validate_token_request(self) -> None:
        self.made.validate_token_request()


@pytest.mark.parametrize(
    ("change", "limit", "is_named"),
    [
        (asks(by_class), ADDRESS_LIMIT, True),
        (asks(by_itself), ADDRESS_LIMIT, True),
        (asks(by_helper), LIMIT, True),
        (Proxy, LIMIT, False),
        (OpaqueProxy, ADDRESS_LIMIT, True),
    ],
    ids=["the method of its class", "a function", "a helper", "a proxy", "an opaque proxy"],
)
def test_password_that_a_grant_checks_in_its_own_way_is_counted(
    change: Callable[[Any], Any], limit: int, is_named: bool
) -> None:
    """By the address, where the name is not seen. The grant is named at start, or with its first token."""
    with capture_logs() as logs, any_form(change=change) as site:
        assert statuses(lambda _: site.login(password=RIGHT)) == {200: MANY}
        assert site.key_count == 0
        assert statuses(lambda _: site.login())[429] == MANY - limit
        assert site.checked.count("alice") == MANY + limit
        assert site.login(password=RIGHT).status_code == 429
        assert site.login(password=RIGHT, address=ELSEWHERE).status_code == 200
    assert is_named is ("password" in named(logs))


def named(logs: Sequence[Any]) -> set[str]:
    return {entry["name"] for entry in logs if entry["event"] == "guard_sees_no_check"}


class OwnAuthentication(Server):
    """Looks clients up past ``query_client``."""

    def authenticate_client(self, request: Any, methods: Any, endpoint: str = "token") -> Any:
        fields, site = request.fields, current_app.extensions["site"]
        client = CLIENTS.get(fields.get("id", fields.get("client_id")))
        if client is None or not (client is PUBLIC or site.is_secret(client, fields.get("secret"))):
            raise InvalidClientError
        return client


class HalfSeen(OwnAuthentication):
    """Looks some clients up where it is seen, so that its code does not show it."""

    def authenticate_client(self, request: Any, methods: Any, endpoint: str = "token") -> Any:
        if "seen" in request.fields:
            return self.query_client("public")
        return OwnAuthentication.authenticate_client(self, request, methods, endpoint)


def own_look_up(site: AnyForm) -> Callable[[Any, Any], Any]:
    def authenticate(_query_client: Any, oauth_request: Any) -> Any:
        client = CLIENTS.get(oauth_request.fields.get("id"))
        return client if client and site.is_secret(client, oauth_request.fields.get("secret")) else None

    return authenticate


class OwnSecretGrant(ClientCredentialsGrant):
    """Looks its client up and checks its secret."""

    def authenticate_token_endpoint_client(self) -> Any:
        client = self.server.query_client(self.request.fields["id"])
        is_secret = current_app.extensions["site"].is_secret(client, self.request.fields["secret"])
        self.request.auth_method = "own"
        if not is_secret:
            raise InvalidClientError
        return client


@pytest.mark.parametrize(
    ("options", "limit", "name"),
    [
        ({"server_type": OwnAuthentication}, ADDRESS_LIMIT, "authenticate_client"),
        ({"server_type": HalfSeen}, ADDRESS_LIMIT, "authenticate_client"),
        ({"method": own_look_up}, ADDRESS_LIMIT, "own"),
        ({"change": lambda grant: OwnSecretGrant if grant is ClientCredentialsGrant else grant}, LIMIT, None),
    ],
    ids=["the server", "the server, sometimes", "a method", "a grant"],
)
def test_secret_that_is_checked_in_an_own_way_is_counted(options: dict[str, Any], limit: int, name: str | None) -> None:
    job = {"grant_type": "client_credentials", "id": "confidential"}
    with capture_logs() as logs, any_form(**options) as site:
        assert statuses(lambda _: site.send(json={**job, "secret": SECRET})) == {200: MANY}
        assert statuses(lambda _: site.login(password=RIGHT)) == {200: MANY}
        assert site.key_count == 0
        assert statuses(lambda number: site.send(json={**job, "secret": f"{number}"}))[429] == MANY - limit
        assert site.checked.count("confidential") == MANY + limit
        assert site.send(json={**job, "secret": SECRET}).status_code == 429
        assert site.send(json={**job, "secret": SECRET}, address=ELSEWHERE).status_code == 200
    assert name is None or named(logs) == {name}


# Signed request objects.


def request_object(secret: str, **claims: str) -> dict[str, str]:
    asked = {"client_id": "confidential", "response_type": "code", "redirect_uri": REDIRECT_URI, **claims}
    return {"client_id": "confidential", "request": jwt.encode({"alg": "HS256"}, asked, OctKey.import_key(secret))}


def test_signature_of_a_request_object_is_guarded_like_a_secret(site: AnyForm) -> None:
    """It counts apart: other sites may send their visitors there, who must not lock the client out elsewhere."""
    found = statuses(lambda number: site.visit(**request_object(f"{SECRET} {number}")))

    assert found == {400: LIMIT, 429: MANY - LIMIT}
    assert len(site.checked) == LIMIT
    assert site.visit(**request_object(SECRET)).status_code == 429
    assert site.visit(**request_object(SECRET), address=ELSEWHERE).status_code == 302
    job = {"grant_type": "client_credentials", "id": "confidential", "secret": SECRET}
    assert site.send(json=job).status_code == 200


def test_request_object_that_is_right_is_never_counted(site: AnyForm) -> None:
    assert statuses(lambda _: site.visit(**request_object(SECRET))) == {302: MANY}
    assert statuses(lambda _: site.visit(**request_object(SECRET, response_type="no-such"))) == {302: MANY}
    assert site.key_count == 0


# Requests without a credential.


def test_requests_without_a_credential_leave_no_more_counters_than_their_bound(site: AnyForm) -> None:
    """They are denied in the end, and nobody else is."""

    def ask(number: int) -> Any:
        form = {"grant_type": "client_credentials", "client_id": f"made-up-{number}"}
        return site.send(data=form)

    assert statuses(ask) == {400: ADDRESS_LIMIT, 429: MANY - ADDRESS_LIMIT}
    assert site.key_count == 1
    assert site.login(password=RIGHT).status_code == 200
    job = {"grant_type": "client_credentials", "id": "confidential", "secret": SECRET}
    assert site.send(json=job).status_code == 200


def test_confidential_client_that_is_only_named_is_not_counted(site: AnyForm) -> None:
    named = {"grant_type": "client_credentials", "client_id": "confidential"}
    assert statuses(lambda _: site.send(data=named)) == {400: MANY}
    images = {"response_type": "token", "client_id": "confidential", "redirect_uri": REDIRECT_URI}
    assert statuses(lambda _: site.visit(headers=CROSS_SITE, **images)) == {400: MANY}
    assert site.key_count == 0


# Web pages of other sites.


@pytest.mark.parametrize("mode", ["no-cors", "navigate", "same-origin", None])
def test_web_page_of_another_site_cannot_lock_its_visitor_out(site: AnyForm, mode: str | None) -> None:
    headers = CROSS_SITE if mode is None else {**CROSS_SITE, "Sec-Fetch-Mode": mode}

    assert statuses(lambda _: site.login("form", headers=headers)) == {403: MANY}
    assert (site.checked, site.key_count) == ([], 0)
    assert site.login(password=RIGHT).status_code == 200


def test_script_of_another_site_counts_apart(site: AnyForm) -> None:
    """Its server may expect it, and anybody may call himself such a script: that doubles his guesses, no more."""
    headers = {**CROSS_SITE, "Sec-Fetch-Mode": "cors"}

    assert statuses(lambda _: site.login("form", headers=headers)) == {400: LIMIT, 429: MANY - LIMIT}
    assert site.login(password=RIGHT).status_code == 200
    assert site.login(password=RIGHT, headers=headers).status_code == 429


def test_dry_run_refuses_nothing() -> None:
    with any_form({"guard": {"mode": "dry-run"}}) as site:
        assert site.login(headers=CROSS_SITE).status_code == 400


def test_tokens_that_other_sites_navigate_for_are_not_taken_from_the_user() -> None:
    limits = {"user": ["3 per day"], "client_total": ["20 per day"]}
    visit = {"response_type": "token", "client_id": "public", "redirect_uri": REDIRECT_URI}

    def outcomes(site: AnyForm, count: int, headers: dict[str, str]) -> list[bool]:
        return ["access_token=" in site.visit(**visit, headers=headers).location for _ in range(count)]

    with any_form({"mode": "enforce", "limits": limits}) as site:
        assert outcomes(site, 5, CROSS_SITE) == [True] * 3 + [False] * 2
        assert outcomes(site, 5, {}) == [True] * 3 + [False] * 2
