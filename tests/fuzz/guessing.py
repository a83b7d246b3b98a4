"""Sessions of one who guesses, sent to a guarded server and to a plain one.

Both servers find clients and users as a lenient database does, whatever the case, accents and invisible characters of
a name. The limits are small, so that a short session reaches them.
"""

import base64
import json
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from flask import Flask, Request
from structlog.testing import capture_logs

from oauth_ratelimit import OAuthRateLimit
from testbed.clock import Clock
from testbed.oauth_server import app as app_module
from testbed.oauth_server import grants
from testbed.oauth_server.database import Database, connect, seed
from testbed.oauth_server.models import AuthorizationCode, Client, Token, User
from tests.fuzz.grammar import MAX_PARTS, STORED_CODE, STORED_REFRESH_TOKEN, STORED_TOKEN, Attempt
from tests.support.apps import app_limiter_of
from tests.support.guarded import WINDOW_S, Guarded, PasswordGrant

LIMITS = {"user": 3, "passed_on": 3, "passed_on_total": 6, "client": 4, "client_address": 6, "address": 5}
SETTINGS = {
    "mode": "enforce",
    "limits": {},
    "guard": {
        "mode": "enforce",
        "limits": {kind: [{"limit": limit, "window": WINDOW_S}] for kind, limit in LIMITS.items()},
    },
}
LAST_S = 2**31  # no token of the database expires


COLLATED = str.maketrans("\u00f8\u0363\U0001f151\u2dea", "oab\u043e")


def lenient(name: str) -> str:
    plain = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", name.translate(COLLATED)).casefold())
    return "".join(letter for letter in plain if unicodedata.category(letter) not in ("Mn", "Cf")).strip()


Key = tuple[str, ...]  # what a wrong one counts against; the kind of its limit comes first


@dataclass
class Checks:
    """Passwords and secrets that the guarded server has checked in a session."""

    host: str = ""  # where the request comes from that is being answered; empty while the plain server answers
    client: Client | None = None  # the client that was authenticated last
    wrong: Counter[Key] = field(default_factory=Counter)  # wrong ones of former requests, by what they count against
    # Whether those of this request were right, by what they count against
    current: dict[Key, list[bool]] = field(default_factory=dict)

    def record(self, *keys: Key, is_right: bool) -> None:
        if self.host:
            for key in keys:
                self.current.setdefault(key, []).append(is_right)

    def record_password(self, user: User, *, is_right: bool) -> None:
        assert self.client is not None
        own, name = self.client.client_id, user.username
        if self.client.client_secret is None:
            self.record(("user", own, name, self.host), ("address", self.host), is_right=is_right)
        else:
            self.record(("passed_on", own, name, self.host), ("passed_on_total", own), is_right=is_right)

    def end_request(self) -> None:
        """Count the wrong ones of a request, and fail if more were checked than a limit allows."""
        secrets = {key: found for key, found in self.current.items() if key[0] == "client"}
        for host in {key[-1] for key in secrets}:
            count = self.wrong["client_address", host] + sum(map(len, secrets.values()))
            assert count <= LIMITS["client_address"], f"secrets were checked too often from {host}"
        for key, found in self.current.items():
            assert self.wrong[key] + len(found) <= LIMITS[key[0]], f"{key} was checked too often"
            if key[0] != "client" or not any(found):  # who knows the secret learns nothing from a wrong one beside it
                self.wrong[key] += found.count(False)
                if key in secrets:
                    self.wrong["client_address", key[-1]] += found.count(False)
        self.current = {}


@contextmanager
def recorded(checks: Checks) -> Iterator[None]:
    """Have the servers' models find names as a lenient database does, and record what they check."""
    find_client, find_user = Database.client, Database.user
    check_secret, check_password = Client.check_client_secret, User.check_password

    def client_of(self: Database, client_id: str) -> Client | None:
        return find_client(self, lenient(client_id))

    def user_of(self: Database, username: str | None) -> User | None:
        return find_user(self, None if username is None else lenient(username))

    def is_secret(self: Client, client_secret: str) -> bool:
        is_right = check_secret(self, client_secret)
        checks.record(("client", self.client_id, checks.host), is_right=is_right)
        return is_right

    def is_password(self: User, password: str) -> bool:
        is_right = check_password(self, password)
        checks.record_password(self, is_right=is_right)
        return is_right

    def may_use(self: Client, grant_type: str) -> bool:
        checks.client = self
        return grant_type in self.grant_types

    with (
        patch.object(Database, "client", client_of),
        patch.object(Database, "user", user_of),
        patch.object(Client, "check_client_secret", is_secret),
        patch.object(Client, "check_grant_type", may_use),
        patch.object(Client, "check_endpoint_auth_method", allows_method),
        patch.object(User, "check_password", is_password),
    ):
        yield


def allows_method(client: Client, method: str, _endpoint: str) -> bool:
    """Return whether a client may prove itself so: as the demo says, or with an assertion if it has a secret."""
    return (method == "none") is (client.client_secret is None)


def asserted(query_client: Callable[[str], Client | None], oauth_request: Any) -> Client | None:
    """Return the client of an assertion, which holds the secret instead of a signature."""
    _, payload, secret = f"{oauth_request.form.get('client_assertion')}..".split(".")[:3]
    try:
        claims = json.loads(base64.urlsafe_b64decode(payload + "==="))
        client = query_client(str(claims["sub"]))
        given = base64.urlsafe_b64decode(secret + "===").decode()
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return client if client and client.check_client_secret(given) else None


@dataclass(frozen=True)
class Servers:
    """The same server without the package and with it, each with a database of its own."""

    plain: Flask
    guarded: Flask
    clock: Clock
    databases: tuple[Path, ...]

    def send(self, session: Iterable[Attempt]) -> Counter[int]:
        """Forget every failure, send a session, and return its statuses.

        Fails if an answer differs that is no denial, or a request was denied without cause.
        """
        Guarded(self.guarded, self.clock).forget()
        for path in self.databases:
            stock(path)
        checks = Checks()
        statuses: Counter[int] = Counter()
        failed_count = 0
        with recorded(checks), capture_logs() as logs:
            for attempt in session:
                checks.host = attempt.host
                found = answer(self.guarded, attempt.request)
                checks.host = ""
                statuses[found[0]] += 1
                checks.end_request()
                if found[0] == 429:
                    assert failed_count + attempt.secret_count > min(LIMITS.values()), "denied without cause"
                    continue  # the plain server would check what is denied, and may use up a code
                assert answer(self.plain, attempt.request) == found
                failed_count += attempt.secret_count if found[0] >= 400 else 0
        assert not [line for line in logs if line["event"].endswith("_failed")]
        return statuses


def answer(app: Flask, request: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what an answer tells: status, type, error, names of the other fields, and where it redirects."""
    response = app.test_client().open(**request)
    body = response.get_json(silent=True)
    fields = body if isinstance(body, dict) else {}
    error = fields.get("error"), fields.get("error_description"), fields.get("active")
    target, _, parameters = (response.location or "").replace("#", "?").partition("?")
    names = sorted(part.partition("=")[0] for part in parameters.split("&"))
    return response.status_code, response.mimetype, *error, sorted(fields), target, names


def stock(path: Path) -> None:
    """Store a code and a token under names that the grammar knows, in place of those that requests have made."""
    own = {"client_id": "web-shop", "username": "alice", "issued_at_s": LAST_S}
    with closing(connect(path)) as connection:
        stored = Database(connection)
        for table in ("tokens", "codes", "device_codes"):
            connection.execute(f"DELETE FROM {table}")
        stored.add_token(Token(STORED_TOKEN, STORED_REFRESH_TOKEN, scope="profile", expires_in_s=60, **own))
        unused = dict.fromkeys(("nonce", "code_challenge", "code_challenge_method"))
        stored.add_code(
            AuthorizationCode(STORED_CODE, redirect_uri="http://localhost/callback", scope="", **unused, **own)
        )


class SmallRequest(Request):
    max_form_parts = MAX_PARTS


class AssertingServer(app_module.AuthorizationServer):  # type: ignore[misc]
    """Accepts an assertion wherever it accepts a secret."""

    def authenticate_client(self, request: Any, methods: Sequence[str], endpoint: str = "token") -> Any:
        return super().authenticate_client(request, ["asserted", *methods], endpoint)


def a_server(path: Path) -> Flask:
    """Return the demo's server. Any client may use the password grant, and prove itself with an assertion."""
    with (
        patch.object(grants, "PasswordGrant", PasswordGrant),
        patch.object(app_module, "AuthorizationServer", AssertingServer),
    ):
        app = app_module.create_app(path)
    app.request_class = SmallRequest
    app.logger.disabled = True  # Authlib's own errors, on both servers
    app.extensions["authorization_server"].register_client_auth_method("asserted", asserted)
    return app


@contextmanager
def both_servers(settings: Mapping[str, Any]) -> Iterator[Servers]:
    with TemporaryDirectory() as folder:
        databases = Path(folder, "plain.sqlite3"), Path(folder, "guarded.sqlite3")
        for path in databases:
            seed(path)
        plain, guarded = map(a_server, databases)
        guarded.config["OAUTH_RATELIMIT_CONFIG"] = settings
        clock = Clock()
        OAuthRateLimit(clock=clock).init_app(guarded, guarded.extensions["authorization_server"])
        with closing(app_limiter_of(guarded)):
            yield Servers(plain, guarded, clock, databases)
