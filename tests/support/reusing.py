"""An application that gives out tokens again above a limit, and remembers what each token was issued for."""

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from authlib.integrations.flask_oauth2 import AuthorizationServer
from authlib.oauth2.rfc6749 import grants
from authlib.oauth2.rfc7009 import RevocationEndpoint
from flask import Flask, Response, request
from werkzeug.test import TestResponse

from oauth_ratelimit import OAuthRateLimit
from testbed.clock import Clock
from testbed.oauth_server.models import Client
from tests.support.apps import app_limiter_of

LIMIT = 3
MAX_AGE_S = 300
CREDENTIALS = {"client_secret", "client_assertion"}
METHODS = ["client_secret_basic", "client_secret_post"]


def reuse_config(*, limit: int = LIMIT, mode: str = "enforce", on_limit: str = "reuse", **more: Any) -> dict[str, Any]:
    """Return a configuration with one limit per client and day."""
    return {
        "mode": mode,
        "limits": {"client": [{"limit": limit, "window": "1d", "on_limit": on_limit}], "user": []},
        "reuse": {"max_age": MAX_AGE_S},
        **more,
    }


EqualServer = type("EqualServer", (AuthorizationServer,), {"__eq__": lambda *_: True, "__hash__": lambda _: 1})


class ClientCredentialsGrant(grants.ClientCredentialsGrant):  # type: ignore[misc]
    TOKEN_ENDPOINT_AUTH_METHODS = (*METHODS, "none")


@dataclass
class Issued:
    """A token with all that it was issued for."""

    purpose: tuple[Any, ...]
    client_id: str
    at_s: float
    lifetime_s: int
    is_revoked: bool = False

    def check_client(self, _client: Any) -> bool:
        return True  # an administrator's may revoke all


@dataclass
class ReuseSite:
    """The application, its clients and its tokens."""

    clock: Clock
    clients: dict[str, Client]
    issued: dict[str, Issued] = field(default_factory=dict)
    saved: list[str] = field(default_factory=list)
    lifetime_s: int = 3600
    extra: dict[str, Any] = field(default_factory=dict)  # put into the answer beside the token
    break_at: str = ""  # where requests fail: ``generate``, ``save``, ``view`` or ``commit``
    app: Flask = field(default_factory=lambda: Flask("some-app"))
    servers: list[Any] = field(default_factory=list)
    purposes: list[tuple[Any, ...]] = field(default_factory=list)  # of the tokens of requests that were answered

    def generate(self, grant_type: str, client: Any, user: Any = None, scope: Any = None, **_: Any) -> dict[str, Any]:
        self.fail_at("generate")
        allowed = client.get_allowed_scope(scope)
        text = f"token-{secrets.token_hex(16)}"
        self.issued[text] = Issued(self.purpose_of(client.client_id), client.client_id, self.clock(), self.lifetime_s)
        token = {"token_type": "Bearer", "access_token": text, "expires_in": self.lifetime_s, "scope": allowed}
        return {**token, **self.extra}

    def purpose_of(self, client_id: str) -> tuple[Any, ...]:
        """Return all that the token of the current request depends on."""
        parameters = [sorted(each.lists()) for each in (request.args, request.form)]
        shown = [[(name, values) for name, values in each if name not in CREDENTIALS] for each in parameters]
        allowed = self.clients[client_id].get_allowed_scope(request.values.get("scope"))
        place = [request.host, *map(request.environ.get, ("SCRIPT_NAME", "PATH_INFO"))]
        return (place, client_id, allowed, shown, request.headers.get("DPoP"))

    def fail_at(self, place: str) -> None:
        if self.break_at == place:
            raise RuntimeError(f"the {place} failed")

    def save(self, token: Any, _request: Any) -> None:
        self.fail_at("save")
        self.saved.append(token["access_token"])

    def add_server(self, path: str) -> None:
        server = EqualServer(self.app, query_client=lambda name: self.clients.get(name), save_token=self.save)
        server.register_grant(ClientCredentialsGrant)
        server.register_token_generator("default", self.generate)
        site = self

        class Revocation(RevocationEndpoint):  # type: ignore[misc]
            CLIENT_AUTH_METHODS = METHODS

            def query_token(self, text: str, _hint: Any) -> Any:
                return site.issued.get(text)

            def revoke_token(self, token: Any, _request: Any) -> None:
                token.is_revoked = True

        server.register_endpoint(Revocation)
        self.servers.append(server)

        def token() -> Response:
            number = request.headers.get("X-Forwarded-Server")  # which is no part of what is compared
            chosen = server if number is None else self.servers[int(number)]
            response: Response = chosen.create_token_response()
            self.fail_at("view")
            name = request.form.get("client_id") or request.authorization.username  # type: ignore[union-attr]
            self.purposes.append(self.purpose_of(str(name)))
            return response

        for rule in (path, f"{path}/"):
            self.app.add_url_rule(rule, rule, token, methods=["POST"])
        revoke = f"{path}/revoke"
        self.app.add_url_rule(revoke, revoke, lambda: server.create_endpoint_response("revocation"), methods=["POST"])

    def ask(
        self,
        client_id: str = "a",
        *,
        path: str = "/token",
        host: str = "localhost",
        method: str = METHODS[0],
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
        environ: Mapping[str, Any] | None = None,
        secret: str | None = None,
        **form: str,
    ) -> TestResponse:
        secret = self.clients[client_id].client_secret or "" if secret is None else secret
        data = {"grant_type": "client_credentials", **form}
        auth = (client_id, secret) if method == METHODS[0] else None
        if auth is None:
            data |= {"client_id": client_id} | ({"client_secret": secret} if method == METHODS[1] else {})
        return self.app.test_client().post(
            path,
            data=data,
            auth=auth,
            headers=dict(headers or {}),
            query_string=dict(query or {}),
            base_url=f"http://{host}",
            environ_overrides=dict(environ or {}),
        )

    def token(self, client_id: str = "a", **options: Any) -> str:
        """Return the token of an answer, which has one."""
        answer = self.ask(client_id, **options).get_json()
        assert "access_token" in answer, answer
        return str(answer["access_token"])

    def statuses(self, count: int, client_id: str = "a", **options: Any) -> list[int]:
        return [self.ask(client_id, **options).status_code for _ in range(count)]

    def use_up(self, client_id: str = "a", **options: Any) -> str:
        """Use up the client's limit, and return the last token."""
        return [self.token(client_id, **options) for _ in range(LIMIT)][-1]

    def revoke(self, token: str, *, by: str = "") -> TestResponse:
        client = self.clients[by or self.issued[token].client_id]
        auth = (client.client_id, client.client_secret or "")
        return self.app.test_client().post("/token/revoke", data={"token": token}, auth=auth)

    def change(self, client_id: str, **changes: Any) -> None:
        """Change a client in the database."""
        self.clients[client_id] = replace(self.clients[client_id], **changes)


@contextmanager
def reuse_site(configuration: Any = None, **options: Any) -> Iterator[ReuseSite]:
    """Yield an application with two servers and three clients, of which ``public`` has no secret."""
    clients = [Client("a", "secret-a"), Client("b", "secret-b"), Client("public")]
    site = ReuseSite(Clock(), {client.client_id: client for client in clients})
    site.add_server("/token")
    site.add_server("/other")
    site.app.after_request(lambda response: site.fail_at("commit") or response)
    site.app.config["OAUTH_RATELIMIT_CONFIG"] = configuration or reuse_config()
    OAuthRateLimit(site.app, site.servers, clock=site.clock, **options)
    try:
        yield site
    finally:
        app_limiter_of(site.app).close()
