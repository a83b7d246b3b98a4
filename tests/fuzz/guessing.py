"""Sessions of one who guesses, sent to a guarded server and to a plain one.

Both servers find clients and users as a lenient database does, whatever the case, accents and invisible characters of
a name. The limits are small, so that a short session reaches them.
"""

import atexit
import base64
import json
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from flask import Flask
from structlog.testing import capture_logs

from demo import grants
from demo.database import Database, connect, seed
from demo.models import AuthorizationCode, Client, Token, User
from demo.server import create_app
from oauth_ratelimit import OAuthRateLimit
from tests.fuzz.grammar import STORED_CODE, STORED_REFRESH_TOKEN, STORED_TOKEN, Attempt, session
from tests.support.apps import app_limiter_of
from tests.support.guarded import PasswordGrant
from tests.support.helpers import Clock

WINDOW_S = 600
LIMITS = {"user": 3, "passed_on": 3, "passed_on_total": 6, "client": 4, "address": 5}
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
    """Return the form under which a lenient database finds a name."""
    plain = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", name.translate(COLLATED)).casefold())
    return "".join(letter for letter in plain if unicodedata.category(letter) not in ("Mn", "Cf")).strip()


Key = tuple[str, ...]  # what a wrong one counts against; the kind of its limit comes first


@dataclass
class Checks:
    """Passwords and secrets that the guarded server has checked in a session.

    Attributes:
        host: Where the request comes from that is being answered; empty while the plain server answers.
        client: The client that was authenticated last.
        wrong: Wrong ones of former requests, by what they count against.
        current: Whether those of this request were right, by what they count against.
    """

    host: str = ""
    client: Client | None = None
    wrong: Counter[Key] = field(default_factory=Counter)
    current: dict[Key, list[bool]] = field(default_factory=dict)

    def record(self, *keys: Key, is_right: bool) -> None:
        """Record a check."""
        if self.host:
            for key in keys:
                self.current.setdefault(key, []).append(is_right)

    def record_password(self, user: User, *, is_right: bool) -> None:
        """Record the check of a user's password."""
        assert self.client is not None
        own, name = self.client.client_id, user.username
        if self.client.client_secret is None:
            self.record(("user", own, name, self.host), ("address", self.host), is_right=is_right)
        else:
            self.record(("passed_on", own, name, self.host), ("passed_on_total", own), is_right=is_right)

    def end_request(self) -> None:
        """Count the wrong ones of a request.

        Raises:
            AssertionError: More were checked than a limit allows.
        """
        for key, found in self.current.items():
            assert self.wrong[key] + len(found) <= LIMITS[key[0]], f"{key} was checked too often"
            if key[0] != "client" or not any(found):  # who knows the secret learns nothing from a wrong one beside it
                self.wrong[key] += found.count(False)
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
        client = query_client(str(json.loads(base64.urlsafe_b64decode(payload + "==="))["sub"]))
        given = base64.urlsafe_b64decode(secret + "===").decode()
    except (ValueError, KeyError, TypeError):
        return None
    return client if client and client.check_client_secret(given) else None


@dataclass(frozen=True)
class Servers:
    """The same server without the guard and with it, each with a database of its own."""

    plain: Flask
    guarded: Flask
    clock: Clock
    databases: tuple[Path, ...]

    def begin(self) -> None:
        """Forget every failure, and restore what requests may have used up."""
        limiter = app_limiter_of(self.guarded)
        guard = limiter.guard()
        for _ in range(2):
            self.clock.advance(2 * WINDOW_S)
            limiter.limiter.sync()
            if guard is not None:
                guard.run()
        for path in self.databases:
            stock(path)

    def send(self, data: bytes) -> Counter[int]:
        """Send a session, and return its statuses.

        Raises:
            AssertionError: An answer differs that is no denial, more was checked than the limits allow, or a request
                was denied without cause.
        """
        self.begin()
        checks = Checks()
        statuses: Counter[int] = Counter()
        failed_count = 0
        with recorded(checks), capture_logs() as logs:
            for attempt in session(data):
                checks.host = attempt.host
                found = answer(self.guarded, attempt)
                checks.host = ""
                statuses[found[0]] += 1
                checks.end_request()
                if found[0] == 429:
                    assert failed_count + attempt.secret_count > min(LIMITS.values()), "denied without cause"
                    continue  # the plain server would check what is denied, and may use up a code
                expected = answer(self.plain, attempt)
                assert expected == found
                failed_count += attempt.secret_count if found[0] in (400, 401) else 0
        assert not [line for line in logs if line["event"].endswith("_failed")]
        return statuses


def answer(app: Flask, attempt: Attempt) -> tuple[Any, ...]:
    """Return what an answer tells: status, type, error, names of the other fields, and where it redirects."""
    response = app.test_client().open(**attempt.options())
    body = response.get_json(silent=True)
    fields = body if isinstance(body, dict) else {}
    error = fields.get("error"), fields.get("error_description"), fields.get("active")
    target, _, parameters = (response.location or "").replace("#", "?").partition("?")
    names = sorted(part.partition("=")[0] for part in parameters.split("&"))
    return response.status_code, response.mimetype, *error, sorted(fields), target, names


def stock(path: Path) -> None:
    """Store a code and a token under names that the grammar knows."""
    connection = connect(path)
    try:
        stored = Database(connection)
        for table in ("tokens", "codes", "device_codes"):
            connection.execute(f"DELETE FROM {table}")
        stored.add_token(
            Token(
                STORED_TOKEN, STORED_REFRESH_TOKEN, "web-shop", "alice", "profile", issued_at_s=LAST_S, expires_in_s=60
            )
        )
        stored.add_code(
            AuthorizationCode(
                STORED_CODE, "web-shop", "alice", "http://localhost/callback", "", None, None, None, issued_at_s=LAST_S
            )
        )
    finally:
        connection.close()


def a_server(path: Path) -> Flask:
    """Return the demo's server. Any client may use the password grant, and prove itself with an assertion."""
    with patch.object(grants, "PasswordGrant", PasswordGrant):
        app = create_app(path)
    app.logger.disabled = True  # Authlib's own errors, on both servers
    server = app.extensions["authorization_server"]
    server.register_client_auth_method("asserted", asserted)
    inner = server.authenticate_client
    server.authenticate_client = lambda request, methods, endpoint="token": inner(
        request, ["asserted", *methods], endpoint
    )
    return app


@cache
def servers() -> Servers:
    """Return both servers, which last as long as the process."""
    stack = ExitStack()
    atexit.register(stack.close)
    folder = Path(stack.enter_context(TemporaryDirectory()))
    databases = folder / "plain.sqlite3", folder / "guarded.sqlite3"
    for path in databases:
        seed(path)
    plain, guarded = map(a_server, databases)
    clock = Clock()
    guarded.config["OAUTH_RATELIMIT_CONFIG"] = SETTINGS
    OAuthRateLimit(clock=clock).init_app(guarded, guarded.extensions["authorization_server"])
    stack.callback(guarded.extensions["oauth_ratelimit"].close)
    return Servers(plain, guarded, clock, databases)
