"""The report of a start: one line per worker, and names in the configuration that match nothing."""

from pathlib import Path
from typing import Any

import pytest
from authlib.integrations.flask_oauth2 import AuthorizationServer
from authlib.oauth2.rfc6749.grants import (
    BaseGrant,
    ImplicitGrant,
    RefreshTokenGrant,
    ResourceOwnerPasswordCredentialsGrant,
    TokenEndpointMixin,
)
from authlib.oidc.core.grants import OpenIDHybridGrant, OpenIDImplicitGrant
from structlog.testing import capture_logs

from oauth_ratelimit import OAuthRateLimit, RateLimitMixin
from testbed.clock import wait_until
from tests.support.apps import app_limiter_of, make_app, make_server, protected_app, token_status

SETTINGS: dict[str, Any] = {
    "mode": "enforce",
    "host": "off",
    "limits": {"user": ["10/second", {"limit": 50, "window": "10s", "mode": "dry-run"}]},
    "trusted_clients": ["our-own-app"],
}

Logs = list[Any]


def started(*grants: Any, settings: Any = SETTINGS, **options: Any) -> Logs:
    """Return what an application with further grants logs until its second token."""
    with capture_logs() as logs, protected_app(OAUTH_RATELIMIT_CONFIG=settings, options=options) as app:
        for grant in grants:
            app.extensions["authorization_server"].register_grant(grant)
        assert [] == of("ratelimit_started", logs)
        assert [200, 200] == [token_status(app), token_status(app)]
    return logs


def of(event: str, logs: Logs) -> Logs:
    return [entry for entry in logs if entry["event"] == event]


def test_first_request_logs_once_what_applies() -> None:
    logs = started(RefreshTokenGrant)
    assert 1 == len(of("counters_not_shared", logs))  # enforced limits without a store
    [entry] = of("ratelimit_started", logs)
    assert {
        "event": "ratelimit_started",
        "log_level": "info",
        "mode": "enforce",
        "canary": "none",
        "limits": {
            "client": "no limit",
            "user": "10/second, 50/10s (dry-run)",
            "client_total": "no limit",
            "user_total": "no limit",
        },
        "store": "none: nothing is shared with other hosts",
        "host": "none: this process shares no file",
        "trusted_clients": ["our-own-app"],
        "servers": ["authlib.integrations.flask_oauth2.authorization_server.AuthorizationServer: generate_token"],
        "grants": ["client_credentials", "refresh_token"],
        "unprotected_grants": {},
    } == entry


def test_limits_that_do_not_apply_are_not_logged() -> None:
    [entry] = of("ratelimit_started", started(settings={"mode": "off"}))
    assert ("off", {}) == (entry["mode"], entry["limits"])


@pytest.mark.parametrize("is_limited", [True, False])
def test_grants_of_the_authorization_endpoint_are_named(is_limited: bool) -> None:
    """As unprotected, if the application has opted out."""
    grants = (ImplicitGrant, OpenIDImplicitGrant, OpenIDHybridGrant)
    [entry] = of("ratelimit_started", started(*grants, authorize_endpoint=is_limited))
    response_types = ("token", "id_token", "id_token token", "code id_token", "code id_token token", "code token")
    names = [f"response_type={name}" for name in response_types]

    assert ["client_credentials", *(names if is_limited else [])] == entry["grants"]
    assert ({} if is_limited else dict.fromkeys(names, "authorize_endpoint=False")) == entry["unprotected_grants"]


def test_names_that_match_nothing_are_logged() -> None:
    settings = {
        "grants": {"client_cred": {"mode": "enforce"}, "password": {"mode": "off"}},
        "clients": {"a": {"grants": {"client_credentials": {"mode": "off"}}}},
        "endpoints": {
            "tokens": {},
            "static": {},
            "by-path": {"path": ["/x*", "/static/?.css", "/sso/tok[ei]n"]},
            "by-method": {"path": ["/token"], "method": ["PUT"]},
        },
    }
    logs = started(settings=settings)

    unknown = {entry["grant_type"]: entry["hint"] for entry in of("grant_unknown", logs)}
    assert {"client_cred", "password"} == unknown.keys()
    assert "its rules never apply; the application has client_credentials" == unknown["password"]
    assert f"{unknown['password']}; did you mean client_credentials?" == unknown["client_cred"]
    path, method, endpoint = of("endpoint_unknown", logs)
    assert ("by-path", "by-method", "tokens") == (path["endpoint"], method["endpoint"], endpoint["endpoint"])
    assert path["hint"].startswith("its path /x* never applies")
    assert endpoint["hint"].endswith("did you mean token?")


def test_reload_warns_as_a_start_does_of_what_is_new(tmp_path: Path) -> None:
    path = tmp_path / "ratelimit.yaml"
    path.write_text("mode: dry-run\ngrants: {client_cred: {}}\nsync: {interval: 50ms}\n")
    with capture_logs() as logs, protected_app(OAUTH_RATELIMIT_CONFIG=str(path)) as app:
        token_status(app)
        guard = "guard: {mode: dry-run, limits: {client: [20/minute]}}"
        more = f"endpoints: {{tokens: {{}}}}\ntrusted_clients: ['*']\ngc_interval: 5s\n{guard}\n"
        path.write_text(path.read_text() + more)
        wait_until(lambda: of("config_reloaded", logs), "the file is read")
        wait_until(lambda: of("endpoint_unknown", logs), "a new warning")

    assert ["client_cred"] == [entry["grant_type"] for entry in of("grant_unknown", logs)]
    for event in ("everybody_trusted", "config_key_ignored", "guard_without_ceiling"):
        assert 1 == len(of(event, logs))


def test_second_server_without_limits_is_named() -> None:
    """Wherever its view has it. One with the mixin, or without any grant, is not named."""
    app = make_app(OAUTH_RATELIMIT_CONFIG=SETTINGS | {"grants": {"refresh_token": {"mode": "off"}}})
    server = make_server(app)
    kinds = [type(name, (AuthorizationServer,), {}) for name in ("Closed", "Bound", "Kept", "Empty")]
    closed, bound, kept, empty = (kind(app) for kind in kinds)
    mixed = type("Mixed", (RateLimitMixin, AuthorizationServer), {})(app)
    for one in (closed, bound, kept, mixed):
        one.register_grant(RefreshTokenGrant)
    app.add_url_rule("/closed", "closed", lambda: (closed, empty, mixed))
    app.add_url_rule("/bound", "bound", bound.create_token_response)
    app.extensions["kept"] = kept
    with capture_logs() as logs:
        OAuthRateLimit(app, server)
        token_status(app)
        app_limiter_of(app).close()

    entries = of("server_unlimited", logs)
    names = [f"{__name__}.{name}" for name in ("Kept", "Closed", "Bound")]
    assert names == [entry["server"] for entry in entries]
    assert [["refresh_token"]] * 3 == [entry["grants"] for entry in entries]
    assert [] == of("grant_unknown", logs), "the server with the mixin has it"


@pytest.mark.parametrize(
    ("rule", "is_strict", "path", "matches"),
    [
        ("/api/orders", True, "/api/orders", True),
        ("/api/orders", True, "/api/order", False),
        ("/api/orders", True, "/auth/api/orders", True),  # it may be mounted there
        ("/api/orders/", False, "/api/orders", True),
        ("/api/orders/", True, "/api/orders", False),  # Flask redirects
        ("/api/orders/<int:number>", True, "/api/orders/7*", True),
        ("/api/<kind>/new", True, "/api/x*/old", False),
        ("/<path:rest>", True, "/anything", True),
        ("/api/orders", True, "/*", True),
        ("/api/orders", True, "/api/orders*/items", False),
        ("/api/orders", True, "/api/order[sz]", True),
    ],
)
def test_path_that_no_route_can_have_is_named(rule: str, is_strict: bool, path: str, matches: bool) -> None:
    app = make_app(OAUTH_RATELIMIT_CONFIG=SETTINGS | {"endpoints": {"orders": {"path": [path]}}})
    app.add_url_rule(rule, "view", lambda **_: "", strict_slashes=is_strict)
    with capture_logs() as logs:
        OAuthRateLimit(app, make_server(app))
        token_status(app)
        app_limiter_of(app).close()
    assert ([] if matches else ["orders"]) == [entry["endpoint"] for entry in of("endpoint_unknown", logs)]


@pytest.mark.parametrize(
    ("version", "is_vulnerable"),
    [("1.6.11", True), ("1.6.12", False), ("1.7.0", True), ("1.7.2", False), ("1.9.8.dev1", False), ("2.0", False)],
)
def test_version_of_authlib_with_published_vulnerabilities_is_named(
    monkeypatch: pytest.MonkeyPatch, version: str, is_vulnerable: bool
) -> None:
    monkeypatch.setattr("oauth_ratelimit.flask_authlib.start_report.version", lambda _: version)
    assert ([version] if is_vulnerable else []) == [entry["version"] for entry in of("authlib_vulnerable", started())]


class OwnPasswords(BaseGrant, TokenEndpointMixin):  # type: ignore[misc]
    """A grant that looks passwords up in the form."""

    GRANT_TYPE = "urn:own:login"

    def validate_token_request(self) -> None:
        self.request.user = self.request.form["password"] == "right"


class AskedPasswords(OwnPasswords):
    GRANT_TYPE = "urn:asked:login"

    def validate_token_request(self) -> None:
        self.request.user = self.authenticate_user(self.request.form["username"], self.request.form["password"])


class FormPasswords(OwnPasswords):
    """A grant that passes the form on."""

    GRANT_TYPE = "urn:form:login"

    def validate_token_request(self) -> None:
        self.request.user = self.authenticate_user(self.request.form)

    def authenticate_user(self, form: Any) -> Any:
        return form["password"] == "right"


class OwnSecrets(RefreshTokenGrant):  # type: ignore[misc]
    """A grant that checks the secret of its client."""

    def authenticate_token_endpoint_client(self) -> Any:
        client = self.server.query_client(self.request.form["client_id"])
        return client if client.check_client_secret(self.request.form["client_secret"]) else None


class OwnServer(AuthorizationServer):  # type: ignore[misc]
    """A server that chooses its grants by itself."""

    def create_token_response(self, request: Any = None) -> Any:
        grant = self._token_grants[0][0](self.create_oauth2_request(request), self)
        grant.validate_token_request()
        return self.handle_response(*grant.create_token_response())


class Method:
    def unseen(self, _query_client: Any, oauth_request: Any) -> Any:
        return oauth_request.headers

    def seen(self, query_client: Any, oauth_request: Any) -> Any:
        return query_client(oauth_request.headers["X-Client"])

    __call__ = unseen


def test_checks_that_the_guard_cannot_see_are_named() -> None:
    def unseen(_query_client: Any, oauth_request: Any) -> Any:
        return oauth_request.headers

    def seen(query_client: Any, oauth_request: Any) -> Any:
        return query_client(oauth_request.headers["X-Client"])

    settings = {**SETTINGS, "guard": {"mode": "dry-run"}}
    with capture_logs() as logs, protected_app(OAUTH_RATELIMIT_CONFIG=settings, server_class=OwnServer) as app:
        server = app.extensions["authorization_server"]
        for grant in (OwnPasswords, AskedPasswords, RefreshTokenGrant, ResourceOwnerPasswordCredentialsGrant):
            server.register_grant(grant)
        for grant in (FormPasswords, OwnSecrets):
            server.register_grant(grant)
        for method in (seen, unseen):
            server.register_client_auth_method(method.__name__, method)
        for name, check in (("seen-2", Method().seen), ("unseen-2", Method().unseen), ("unseen-3", Method())):
            server.register_client_auth_method(name, check)
        token_status(app)

    assert [
        *("urn:own:login", "urn:form:login", "refresh_token"),
        *("create_token_response", "unseen", "unseen-2", "unseen-3"),
    ] == [entry["name"] for entry in of("guard_sees_no_check", logs)]
