"""Grammar of requests by one who guesses: any bytes are a session of them.

Every choice takes one byte, and the first option of each is the plain one, so a session of zeros is a plain attack.
"""

import base64
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar
from urllib.parse import quote, quote_plus

from demo.database import BATCH_JOBS, MOBILE_APP, WEB_SHOP
from demo.models import GRANT_DEVICE_CODE, GRANT_JWT_BEARER, GRANT_OWN_TOKEN
from tests.support.flows import password_of

MAX_REQUESTS = 40
T = TypeVar("T")

ENDPOINTS = ("/token", "/revoke", "/introspect", "/device_authorization", "/authorize")
GRANT_TYPES = (
    *("password", "client_credentials", GRANT_OWN_TOKEN, "refresh_token", "authorization_code"),
    *(GRANT_DEVICE_CODE, GRANT_JWT_BEARER, "implicit", "", "PASSWORD"),
)
RESPONSE_TYPES = ("token", "code", "id_token token", "code id_token", "x")
STORED_TOKEN, STORED_REFRESH_TOKEN, STORED_CODE = "stored-token", "stored-refresh-token", "stored-code"
CLIENTS = (WEB_SHOP.client_id, MOBILE_APP.client_id, BATCH_JOBS.client_id, "nobody", "")
USERS = ("alice", "bob", "carol", "nobody", "", "a:b", "x" * 3000)
SECRETS = {client.client_id: client.client_secret or "" for client in (WEB_SHOP, BATCH_JOBS, MOBILE_APP)}

# How a name is written. All but the last are one name to a lenient database, see ``guessing``.
SPELLINGS: tuple[Callable[[str], str], ...] = (
    str,
    str.upper,
    str.title,
    lambda name: name + "  ",
    lambda name: f"\u00a0{name}\t",
    lambda name: name.replace("a", "\u00e4"),
    lambda name: name.replace("b", "b\u0301"),
    lambda name: name.replace("o", "\u00f8"),
    lambda name: name.replace("c", "\uff43"),
    lambda name: name.replace("i", "\u2170"),
    lambda name: name[:1] + "\u200b" + name[1:],
    lambda name: name[:2] + "\u00ad\u2060" + name[2:],
    lambda name: name + "\u0301" * 100,
    lambda name: name.replace("s", "\u017f"),
    lambda name: name.replace("a", "\u0363"),
    lambda name: name.replace("b", "\U0001f151"),
    lambda name: name + "\0",
)

# One host each, in the forms that servers and proxies write. A /64 is one host. All of them are public, because with
# X-Forwarded-For a request from another address is not guarded.
HOSTS: dict[str, tuple[str, ...]] = {
    "a": (
        *("93.184.215.7", "93.184.215.7:4711", "::ffff:93.184.215.7", "[::ffff:93.184.215.7]:80"),
        *("64:ff9b::93.184.215.7", "::ffff:5db8:d707", "0:0:0:0:0:ffff:93.184.215.7", "64:ff9b::5db8:d707"),
        *("::FFFF:93.184.215.7%eth0", "[64:ff9b::5db8:d707]"),
    ),
    "b": ("93.184.216.9", "93.184.216.9:1", "[::ffff:93.184.216.9]"),
    "c": ("2a02:db8:1::1", "2a02:db8:1::2", "[2a02:db8:1::1]:80", "2A02:0DB8:0001:0000::ffff", "2a02:db8:1::1%eth0"),
    "d": ("2a02:db8:1:1::1", "[2a02:db8:1:1:8000::]"),
}


@dataclass
class Choices:
    """Choices that bytes stand for; the first option once they are used up.

    Attributes:
        wants_password: True if most requests of the session guess a password, with a client that proves itself.
    """

    data: bytes
    position: int = 0
    wants_password: bool = False

    @property
    def is_empty(self) -> bool:
        """True if all bytes are used up."""
        return self.position >= len(self.data)

    def of(self, options: Sequence[T]) -> T:
        """Return one of the options."""
        byte = 0 if self.is_empty else self.data[self.position]
        self.position += 1
        return options[byte % len(options)]

    def rarely(self) -> bool:
        """Return True once in eight times."""
        return self.of((False,) * 7 + (True,))


@dataclass
class Attempt:
    """A request, for Werkzeug's test client.

    Attributes:
        host: Who sends it, a name of ``HOSTS``.
        address: The address that the server sees.
        headers: Header fields, some of them more than once.
        secret_count: Credentials in it, at least one.
    """

    host: str
    address: str
    method: str = "POST"
    path: str = "/token"
    query: str = ""
    body: bytes = b""
    headers: list[tuple[str, str]] = field(default_factory=list)
    secret_count: int = 1

    def options(self) -> dict[str, Any]:
        """Return the arguments of ``Client.open``."""
        return {
            "method": self.method,
            "path": self.path,
            "query_string": self.query,
            "data": self.body,
            "headers": self.headers,
            "environ_base": {"REMOTE_ADDR": self.address},
        }


def a_session(seed: int) -> bytes:
    """Return a session from a fixed seed: mostly plain requests, or mostly odd ones."""
    random = Random(seed)
    plain_ratio = random.choice((0.5, 0.8, 0.9, 0.96))
    size = random.choice((300, 800, 1500))
    drawn = (0 if random.random() < plain_ratio else random.randrange(256) for _ in range(size))
    return bytes([seed % 2, *drawn])


def session(data: bytes) -> Iterator[Attempt]:
    """Yield the requests that these bytes stand for."""
    choices = Choices(data)
    choices.wants_password = choices.of((False, True))
    for _ in range(MAX_REQUESTS):
        if choices.is_empty:
            return
        yield an_attempt(choices)


def an_attempt(choices: Choices) -> Attempt:
    """Return a request."""
    host = choices.of(("a", "a", "a", "a", "b", "c", "c", "d"))
    attempt = Attempt(host, choices.of(HOSTS[host]))
    attempt.path = choices.of(("/token",) * 6 + ENDPOINTS[1:])
    form: list[tuple[str, str]] = []
    query: list[tuple[str, str]] = []

    def put(name: str, value: str) -> None:
        """Add a parameter to the form or the query, sometimes twice."""
        places = choices.of(([form],) * 9 + ([query], [query, form], [form, form]))
        for place in places:
            place.append((name, value))
        if choices.rarely():
            places[0].insert(choices.of((0, len(places[0]))), (name, choices.of(("other", "alice", "web-shop", ""))))

    add_credentials(choices, attempt, put)
    if attempt.path == "/authorize":
        attempt.method = choices.of(("GET", "GET", "POST"))
        form = query
        put("response_type", choices.of(RESPONSE_TYPES))
        put("user", choices.of(USERS))
        put("nonce", f"nonce-{choices.position}")
        put("scope", choices.of(("openid", "", "profile")))
    else:
        attempt.method = choices.of(("POST",) * 12 + ("GET", "PUT", "HEAD", "OPTIONS"))
        add_grant(choices, put)
    attempt.query = encoded(choices, query)
    attempt.body, content_type = body_of(choices, form)
    if content_type:
        attempt.headers.append(("Content-Type", content_type))
    if choices.rarely():
        attempt.headers.append(("X-Forwarded-For", choices.of(("203.0.113.5", "127.0.0.1", "x"))))
    return attempt


def a_name(choices: Choices, names: Sequence[str]) -> str:
    """Return a name in some spelling."""
    name = choices.of((names[0],) * 4 + tuple(names))
    return choices.of((str,) * 8 + SPELLINGS)(name)


def a_secret(choices: Choices, name: str) -> str:
    """Return a wrong secret, now and then the right one; the other way round if a password is guessed."""
    right = SECRETS.get(name.strip().lower(), "x")
    usual = right if choices.wants_password else "wrong"
    return choices.of((usual, usual, usual, "guess", right, "wrong", "", "a:b", "\u00e4"))


def add_credentials(choices: Choices, attempt: Attempt, put: Callable[[str, str], None]) -> None:
    """Add what is to prove the client: in headers, parameters, an assertion, or several of them."""
    usual = ("public",) if choices.wants_password else ("basic",)
    kinds: tuple[str, ...] = choices.of(
        (
            *(usual, usual, usual),
            *(("basic",), ("form",), ("public",), ("basic",), ("form",), ("public",)),
            *(
                ("basic", "form"),
                ("form", "basic", "basic"),
                ("assertion",),
                ("assertion", "form"),
                ("basic", "assertion"),
            ),
            *(("basic", "basic"), ("basic", "public"), ("bearer",), (), ("basic", "form", "assertion")),
        )
    )
    attempt.secret_count = max(1, len(kinds))
    for kind in kinds:
        name = MOBILE_APP.client_id if kind == "public" else a_name(choices, CLIENTS)
        if kind == "basic":
            attempt.headers.append(("Authorization", basic(choices, name, a_secret(choices, name))))
        elif kind == "bearer":
            attempt.headers.append(("Authorization", choices.of(("Bearer x", "Basic", "Basic !!!", "Digest x", ""))))
        elif kind == "assertion":
            put("client_assertion", assertion(name, a_secret(choices, name)))
        else:
            put("client_id", name)
            if kind == "form":
                put("client_secret", a_secret(choices, name))


def basic(choices: Choices, name: str, secret: str) -> str:
    """Return an Authorization header, encoded in one of the ways that Authlib reads."""
    quoting = choices.of(
        (str, str, str, quote, quote_plus, lambda text: "".join(f"%{byte:02x}" for byte in text.encode()))
    )
    token = base64.b64encode(f"{quoting(name)}:{quoting(secret)}".encode()).decode()
    scheme = choices.of(("Basic ", "Basic ", "basic ", "BASIC  ", "Basic\t"))
    return scheme + choices.of(
        (token, token, token.rstrip("="), f"{token[:4]} {token[4:]}", token + "!", token + "====")
    )


def assertion(name: str, secret: str) -> str:
    """Return an assertion, which holds the secret instead of a signature."""
    payload = base64.urlsafe_b64encode(json.dumps({"sub": name}).encode()).decode().rstrip("=")
    return f"e30.{payload}.{base64.urlsafe_b64encode(secret.encode()).decode().rstrip('=')}"


def add_grant(choices: Choices, put: Callable[[str, str], None]) -> None:
    """Add the parameters of a grant, or those of the other endpoints."""
    grant_type = choices.of(GRANT_TYPES[:1] * 3 + GRANT_TYPES)
    put("grant_type", grant_type)
    name = a_name(choices, USERS)
    if grant_type in ("password", GRANT_OWN_TOKEN, "PASSWORD") or choices.rarely():
        put("username", name)
        put("password", choices.of(("wrong", "guess", "wrong", password_of(name.strip().lower()), "", "x" * 300)))
    elif grant_type == "refresh_token":
        put("refresh_token", choices.of(("bogus", STORED_REFRESH_TOKEN)))
    elif grant_type == "authorization_code":
        put("code", choices.of(("bogus", STORED_CODE)))
        put("redirect_uri", "http://localhost/callback")
    elif grant_type == GRANT_DEVICE_CODE:
        put("device_code", "bogus")
    elif grant_type == GRANT_JWT_BEARER:
        put("assertion", choices.of((assertion("web-shop", "x"), "x", "a.b.c")))
    if choices.rarely():
        put("token", choices.of((STORED_TOKEN, "bogus")))


def encoded(choices: Choices, pairs: Sequence[tuple[str, str]]) -> str:
    """Return parameters in one of the ways that mean the same."""
    quoting = choices.of(
        (quote_plus, quote_plus, quote, lambda text: "".join(f"%{byte:02X}" for byte in text.encode()))
    )
    return choices.of(("&", "&", "&", "&&")).join(f"{quoting(name)}={quoting(value)}" for name, value in pairs)


def body_of(choices: Choices, form: Sequence[tuple[str, str]]) -> tuple[bytes, str]:
    """Return a body and its type. Some of them hide the parameters from Werkzeug, for Authlib as for the guard."""
    kind = choices.of(
        ("form",) * 10 + ("charset", "capitals", "multipart", "multipart", "file", "json", "none", "utf-16")
    )
    if kind in ("multipart", "file"):
        name_of = '"{}"; filename="x"' if kind == "file" else choices.of(('"{}"', "{}", '"{}"'))
        parts = [
            f"--B\r\nContent-Disposition: form-data; name={name_of.format(name)}\r\n\r\n{value}\r\n"
            for name, value in form
        ]
        return "".join([*parts, "--B--\r\n"]).encode(), "multipart/form-data; boundary=B"
    if kind == "json":
        return json.dumps(dict(form)).encode(), "application/json"
    text = encoded(choices, form)
    types = {
        "charset": "application/x-www-form-urlencoded; charset=utf-7",
        "capitals": "Application/X-WWW-Form-URLEncoded",
    }
    if kind == "none":
        return text.encode(), ""
    return text.encode("utf-16" if kind == "utf-16" else "utf-8"), types.get(kind, "application/x-www-form-urlencoded")
