"""Sessions of requests by one who guesses. The first option of each choice is the plain one."""

import base64
import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar
from urllib.parse import quote, quote_plus

from hypothesis import strategies as st

from testbed.oauth_server.database import BATCH_JOBS, MOBILE_APP, WEB_SHOP
from testbed.oauth_server.models import GRANT_DEVICE_CODE, GRANT_JWT_BEARER, GRANT_OWN_TOKEN
from tests.support.flows import password_of

T = TypeVar("T")

MAX_PARTS = 40  # of a body with several; the servers refuse more
CHUNK = 64 * 1024  # bytes that Werkzeug parses at once

ENDPOINTS = ("/token", "/revoke", "/introspect", "/device_authorization", "/authorize")
STORED_TOKEN, STORED_REFRESH_TOKEN, STORED_CODE = "stored-token", "stored-refresh-token", "stored-code"
CLIENTS = (WEB_SHOP.client_id, MOBILE_APP.client_id, BATCH_JOBS.client_id, "nobody", "")
USERS = ("alice", "bob", "carol", "nobody", "", "a:b", "x" * 3000)
SECRETS = {client.client_id: client.client_secret or "" for client in (WEB_SHOP, BATCH_JOBS, MOBILE_APP)}

# What proves a client, one or several in a request.
CREDENTIALS: tuple[tuple[str, ...], ...] = (
    *(("basic",), ("form",), ("public",), ("basic", "form"), ("form", "basic", "basic"), ("assertion",), ("bearer",)),
    *(("assertion", "form"), ("basic", "assertion"), ("basic", "basic"), ("basic", "public"), ()),
    ("basic", "form", "assertion"),
)
# Parameters of each grant, with their values.
GRANTS: dict[str, dict[str, tuple[str, ...]]] = {
    **{name: {} for name in ("password", "client_credentials", GRANT_OWN_TOKEN, "implicit", "", "PASSWORD")},
    "refresh_token": {"refresh_token": ("bogus", STORED_REFRESH_TOKEN)},
    "authorization_code": {"code": ("bogus", STORED_CODE), "redirect_uri": ("http://localhost/callback",)},
    GRANT_DEVICE_CODE: {"device_code": ("bogus",)},
    GRANT_JWT_BEARER: {"assertion": ("e30.eyJzdWIiOiJ3ZWItc2hvcCJ9.eA", "x", "a.b.c")},
}

# How a name is written: letters that are replaced, and what surrounds it. All but the last of each are one name to a
# lenient database, see ``guessing``.
LETTERS = (
    *(("", ""), ("a", "\u00e4"), ("b", "b\u0301"), ("o", "\u00f8"), ("c", "\uff43"), ("i", "\u2170"), ("s", "\u017f")),
    *(("a", "\u0363"), ("b", "\U0001f151"), ("l", "l\u200b"), ("e", "\u00ad\u2060e"), ("e", "3")),
)
SURROUNDINGS = (("", ""), ("", "  "), ("\u00a0", "\t"), ("", "\u0301" * 100), ("", "\0"))

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


class Choose(Protocol):
    def __call__(self, options: Sequence[T], /) -> T: ...


class Attempt(NamedTuple):
    host: str  # who sends it, a name of ``HOSTS``
    secret_count: int  # credentials in it, at least one
    request: dict[str, Any]  # arguments of Werkzeug's test client


@st.composite
def sessions(draw: st.DrawFn) -> list[Attempt]:
    """Most choices are plain, or no session would reach a limit. Half of the sessions guess passwords of users."""
    odd = draw(st.sampled_from((20, 8, 4, 2)))

    def choose(options: Sequence[T], /) -> T:
        return draw(st.sampled_from(options)) if draw(st.integers(1, odd)) == odd else options[0]

    usual_host, usual_kinds = draw(st.sampled_from(tuple(HOSTS))), draw(st.sampled_from(CREDENTIALS))
    wants_password = draw(st.booleans())
    return [
        an_attempt(choose, choose((usual_host, *HOSTS)), choose((usual_kinds, *CREDENTIALS)), wants_password)
        for _ in range(draw(st.integers(5, 25)))
    ]


def an_attempt(choose: Choose, host: str, kinds: tuple[str, ...], wants_password: bool) -> Attempt:
    path = choose(("/token", *ENDPOINTS))
    form: list[tuple[str, str]] = []
    query: list[tuple[str, str]] = []
    headers: list[tuple[str, str]] = []

    def put(name: str, value: str) -> None:
        """Add a parameter to the form or the query, sometimes twice."""
        for place in choose(([form], [query], [query, form], [form, form])):
            place.append((name, value))
        if rarely(choose):
            form.insert(choose((0, len(form))), (name, choose(("other", "alice", "web-shop", ""))))

    for kind in kinds:
        add_credential(choose, kind, headers, put, wants_password=wants_password)
    method = choose(("POST", "GET", "PUT", "HEAD", "OPTIONS"))
    if path == "/authorize":
        method, form = choose(("GET", "POST")), query
        put("response_type", choose(("token", "code", "id_token token", "code id_token", "x")))
        put("user", choose(USERS))
        put("nonce", "some-nonce")
        put("scope", choose(("openid", "", "profile")))
    else:
        add_grant(choose, put)
    body, content_type = body_of(choose, form)
    if content_type:
        headers.append(("Content-Type", content_type))
    if rarely(choose):
        headers.append(("X-Forwarded-For", choose(("203.0.113.5", "127.0.0.1", "x"))))
    environ = {"REMOTE_ADDR": choose(HOSTS[host])}
    request = {"method": method, "path": path, "query_string": encoded(choose, query), "data": body}
    if rarely(choose):  # bytes that some servers pass on as they are
        request["environ_overrides"] = {"QUERY_STRING": f"{request['query_string']}&x=\xff"}
    return Attempt(host, max(1, len(kinds)), {**request, "headers": headers, "environ_base": environ})


def rarely(choose: Choose) -> bool:
    return choose((False,) * 7 + (True,))


def a_name(choose: Choose, names: Sequence[str]) -> str:
    (old, new), (before, after) = choose(LETTERS), choose(SURROUNDINGS)
    name = choose(names)
    return choose((str, str.upper, str.title))(before + (name.replace(old, new) if old else name) + after)


def add_credential(
    choose: Choose, kind: str, headers: list[tuple[str, str]], put: Callable[[str, str], None], *, wants_password: bool
) -> None:
    """Add what proves the client: wrong, now and then right; the other way round if passwords are guessed."""
    name = MOBILE_APP.client_id if kind == "public" else a_name(choose, CLIENTS)
    right = SECRETS.get(name.strip().lower(), "x")
    secret = choose((right if wants_password else "wrong", "guess", right, "wrong", "", "a:b", "\u00e4"))
    if kind == "basic":
        headers.append(("Authorization", basic(choose, name, secret)))
    elif kind == "bearer":
        headers.append(("Authorization", choose(("Bearer x", "Basic", "Basic !!!", "Digest x", ""))))
    elif kind == "assertion":  # it holds the secret instead of a signature
        claims = base64url(json.dumps({"sub": name}).encode())
        put("client_assertion", f"e30.{claims}.{base64url(secret.encode())}")
    else:
        put("client_id", name)
        if kind == "form":
            put("client_secret", secret)


def base64url(part: bytes) -> str:
    return base64.urlsafe_b64encode(part).decode().rstrip("=")


def percent_encoded(text: str) -> str:
    return "".join(f"%{byte:02x}" for byte in text.encode())


def basic(choose: Choose, name: str, secret: str) -> str:
    """Return an Authorization header, encoded in one of the ways that Authlib reads."""
    quoting = choose((str, quote, quote_plus, percent_encoded))
    token = base64.b64encode(f"{quoting(name)}:{quoting(secret)}".encode()).decode()
    return choose(("Basic ", "basic ", "BASIC  ", "Basic\t")) + choose(
        (token, token.rstrip("="), f"{token[:4]} {token[4:]}", token + "!", token + "====")
    )


def add_grant(choose: Choose, put: Callable[[str, str], None]) -> None:
    grant_type = choose(tuple(GRANTS))
    put("grant_type", grant_type)
    if grant_type in ("password", GRANT_OWN_TOKEN, "PASSWORD") or rarely(choose):
        name = a_name(choose, USERS)
        put("username", name)
        put("password", choose(("wrong", "guess", password_of(name.strip().lower()), "", "x" * 300)))
    for parameter, values in GRANTS[grant_type].items():
        put(parameter, choose(values))
    if rarely(choose):
        put("token", choose((STORED_TOKEN, "bogus")))


def encoded(choose: Choose, pairs: Sequence[tuple[str, str]]) -> str:
    quoting = choose((quote_plus, quote, percent_encoded))
    return choose(("&", "&&")).join(f"{quoting(name)}={quoting(value)}" for name, value in pairs)


def body_of(choose: Choose, form: Sequence[tuple[str, str]]) -> tuple[bytes, str]:
    """Return a body and its type. Some of them hide the parameters from Werkzeug, for Authlib as for the guard."""
    types = {
        "form": "application/x-www-form-urlencoded",
        "charset": "application/x-www-form-urlencoded; charset=utf-7",
        "capitals": "Application/X-WWW-Form-URLEncoded",
        **dict.fromkeys(("multipart", "file", "full", "behind"), "multipart/form-data; boundary=B"),
        "json": "application/json",
        "none": "",
        "utf-16": "application/x-www-form-urlencoded",
    }
    kind = choose(tuple(types))
    if types[kind].startswith("multipart"):
        name_of = '"{}"; filename="x"' if kind == "file" else choose(('"{}"', "{}"))
        parts = [
            f"--B\r\nContent-Disposition: form-data; name={name_of.format(name)}\r\n\r\n{value}\r\n"
            for name, value in form
        ]
        empty = '--B\r\nContent-Disposition: form-data; name="x"\r\n\r\n\r\n' * (MAX_PARTS + 1)
        before = {"behind": empty.ljust(CHUNK, "x") + "\r\n"}.get(kind, "")  # read first, and refused
        return "".join([before, *parts, empty if kind == "full" else "", "--B--\r\n"]).encode(), types[kind]
    text = json.dumps(dict(form)) if kind == "json" else encoded(choose, form)
    return text.encode("utf-16" if kind == "utf-16" else "utf-8"), types[kind]
