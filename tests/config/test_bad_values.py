"""Each key of the configuration with bad values, and the message for each."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from oauth_ratelimit.config import load_config
from oauth_ratelimit.config.settings import FILE
from oauth_ratelimit.errors import ConfigError

DURATION = "(seconds as a number, or text such as 500ms, 10s, 1m, 1h, 1d)"
MODE = "off, dry-run or enforce"
FLAG = "true or false"
TEXT = "text"
PATTERN = "text of 1 to 1024 characters, with * ? [] as in a shell"
NAME = "1 to 64 letters, digits, dots, hyphens and underscores, the first a letter or digit"
ENDPOINT = (
    "1 to 64 letters, digits, dots, hyphens and underscores, but neither token nor client_total nor user_total "
    "(limits of the token endpoint belong under limits)"
)
CLIENT_ID = "text of 1 to 1024 characters"
GRANT_TYPE = "a grant type, such as refresh_token"
AMOUNT = "a whole number from 1 to 2^53 (9007199254740992)"
WINDOW = f"whole seconds from 1 s to 366 days {DURATION}"
TOO_MANY = "limits.user: got 101 limits, allowed: at most 100, because each key counts in all"
FRAMES = "a whole number from 1 to 60 that divides the window, because a document holds them all"
POLICY_NAME = "1 to 64 printable ASCII characters other than quotation mark and backslash, no space at the ends"
RATES = "text such as 100/minute, 40/5s, 5 per 10 second, 10/second; 100/hour"
LIMIT = f"a mapping with limit and window, or {RATES}"
RATES_IN_BOUNDS = "1 to 2^53 requests per 1 second to 366 days"
HOST = (
    "auto, off, or the absolute path of a file, without spaces, in a directory that other users cannot write to, such "
    "as /var/lib/myauth/ratelimit.db"
)
MAX_KEYS = "a whole number from 1 to 1000000000"
ASCII = "printable ASCII characters other than quotation mark and backslash"
COLLECTION = "1 to 120 letters, digits, dots, hyphens and underscores, the first a letter or underscore"
NETWORK = "an address or a network, such as 192.0.2.7, 10.0.0.0/8 or 2001:db8::/32, with no bits beyond its length"
ADDRESS = "an http or https address in ASCII, up to 1000 characters"
URI = "text that begins with mongodb:// or mongodb+srv://"
SWITCH = "mode, enabled, limits"

# The path of a key, what is allowed there, and values that are not: those that the JSON Schema refuses, too, and those
# that take arithmetic or another value, or that no JSON has.
REFUSED: list[tuple[str, str, list[object]]] = [
    ("mode", MODE, ["Enforce", True, None, ["off"]]),
    ("enabled", FLAG, ["false", 0]),
    ("instance", "text of 1 to 255 characters", ["", 7]),
    ("host", HOST, ["automatic", "ratelimit.db", "/", "/run/", "/run/my auth.db", "~/ratelimit.db", True, None, 3]),
    ("max_keys", MAX_KEYS, [0, 1.5, True, 10**10]),
    ("trusted_clients", "a list", ["app", None]),
    ("trusted_clients[0]", PATTERN, ["", 17]),
    *(
        (section, "a mapping", [None, ["x"], 3])
        for section in ("store", "sync", "limits", "grants", "plans", "clients", "endpoints", "denial", "guard")
    ),
    ("canary", "a mapping", [["x"], 3, "10%"]),
    ("limits.user", "a list", ["1/minute", None]),
    ("limits.client", "a list", [{"limit": 1}]),
    ("limits.client_total", "a list", [5]),
    ("limits.user_total", "a list", [5]),
    ("limits.user[0]", LIMIT, [17, None, []]),
    ("limits.user[0]", RATES, ["ten/minute", "1/minute;", "", "100", "100 minute", "1.5/minute", "1/second per hour"]),
    ("limits.user[0].limit", AMOUNT, [0, -1, 1.5, 2**53 + 1, 10**20, "10", True, None]),
    ("limits.user[0].window", WINDOW, [0, -60, 1.5, "1 fortnight", 10**20, True, None]),
    ("limits.user[0].frames", FRAMES, [0, -2, 61, "2", True]),
    ("limits.user[0].name", POLICY_NAME, ["", " x", 'say "x"', "a\nb", "für", 5]),
    ("limits.user[0].estimator", "sliding, proportional or strict", ["exact", None]),
    ("limits.user[0].count_denied", FLAG, [1, "yes"]),
    ("limits.client[0].on_limit", "deny or reuse", ["allow", True, None]),
    ("limits.user[0].mode", MODE, ["shadow"]),
    ("limits.user[0].enabled", FLAG, ["no"]),
    ("grants.password", "a mapping", [None]),
    ("grants.password.limits.user[0].limit", AMOUNT, [0]),
    ("endpoints.revocation", "a mapping", [[]]),
    ("endpoints.revocation.path", "a list", ["/x"]),
    ("endpoints.revocation.path[0]", PATTERN, [""]),
    ("endpoints.revocation.method[0]", "an HTTP method in capitals, such as POST", ["post"]),
    ("canary.percent", "a number from 0 to 100", [101, -1, "10%", True]),
    ("canary.salt", TEXT, [2024]),
    ("canary.instances", "a list", ["node-1"]),
    ("clients.app", "a mapping", [None]),
    ("clients.app.mode", MODE, ["enforced"]),
    ("clients.app.plan", NAME, [5]),
    ("clients.app.grants.password.limits.client[0]", LIMIT, [3]),
    ("plans.gold", "a mapping", [None]),
    ("plans.gold.mode", MODE, ["x"]),
    ("store.uri", URI, [27017]),
    ("store.collection", COLLECTION, ["", "$cmd"]),
    ("store.namespace", NAME, ["a b"]),
    ("store.timeout", f"10 ms to 60 s {DURATION}", [0]),
    ("sync.interval", f"10 ms to 1 h {DURATION}", [0, "", "10", "10  s", "-1s", "1M", "1h30m", "١s", False, None]),
    ("sync.preload", "a whole number from 0 to 1000000", [-1]),
    ("denial.error", f"1 to 64 {ASCII}", ["", "zu spät"]),
    ("denial.error_description", f"1 to 500 {ASCII}", ["a\\b"]),
    ("denial.error_uri", ADDRESS, ["docs/reuse"]),
    ("denial.expose_headers", "true or false", ["yes"]),
    ("denial.headers", "a list", ["ietf"]),
    ("denial.headers[0]", "ietf or x-ratelimit", ["IETF"]),
    ("events.per_minute", "a whole number from 1 to 1000000", [0]),
    ("events.keep_denials", f"0 to 366 days {DURATION}", [-1]),
    ("events.request_id_header", "the name of an HTTP header, such as X-Request-ID", ["X Request", ""]),
    ("reuse.max_age", f"1 s to 1 h {DURATION}", [0]),
    ("reuse.max_bytes", "a whole number from 0 to 10000000000", [-1]),
    ("statistics.keep", f"0 to 366 days {DURATION}", [-1]),
    ("statistics.clients_per_minute", "a whole number from 1 to 100000", [0]),
    ("statistics.users_per_client", "a whole number from 0 to 1000", [1001]),
    ("statistics.token_lifetime", f"1 s to 366 days {DURATION}", [0]),
    ("privacy.user_names", "plain or hashed", ["secret"]),
    ("guard.mode", MODE, ["on"]),
    ("guard.max_keys", MAX_KEYS, [0]),
    ("guard.limits.user[0]", RATES, ["ten"]),
    ("guard.limits.passed_on[0]", LIMIT, [5]),
    ("guard.limits.passed_on_total[0]", LIMIT, [5]),
    ("guard.limits.client_address[0]", LIMIT, [5]),
    ("guard.limits.client[0]", LIMIT, [5]),
    ("guard.limits.address", "a list", ["1/minute"]),
    ("guard.trusted_addresses", "a list", ["::1"]),
    ("guard.trusted_addresses[0]", NETWORK, [1]),
]
BEYOND_A_SCHEMA: list[tuple[str, str, list[object]]] = [
    ("limits.user[0]", RATES, ["100/fortnight", "100/M", "100/5ms", "١/second"]),
    ("limits.user[0]", RATES_IN_BOUNDS, ["0/minute", "1/0 second", "1/2 years"]),
    ("limits.user[0].limit", AMOUNT, [5.0]),
    ("limits.user[0].window", WINDOW, ["500ms", "367d"]),
    ("limits.user[0].frames", FRAMES, [2.0]),
    ("limits.user[0].frames", "a number that divides the window of 60 s into whole seconds", [7]),
    ("limits.user[0].name", POLICY_NAME, ["x\n"]),
    ("store.timeout", f"10 ms to 60 s {DURATION}", ["2m"]),
    ("sync.interval", f"10 ms to 1 h {DURATION}", ["2h", "1s\n"]),
    ("sync.max_interval", f"10 ms to 1 h {DURATION}", ["0s", "2h"]),
    ("denial.error_description", f"1 to 500 {ASCII}", ["a\n"]),
    ("events.keep_denials", f"0 to 366 days {DURATION}", ["367d"]),
    ("guard.trusted_addresses[0]", NETWORK, ["10.0.0.1/8", "example.com"]),
]
SECRET = [
    ("store", "a mapping", "localhost"),
    ("store.uri", URI, "http://localhost"),
    ("store.uri", URI, "mongodb://"),
    ("privacy", "a mapping", "hashed"),
    ("privacy.keys", "a list", "k" * 40),
    ("privacy.keys[0]", "a mapping", "k" * 40),
    ("privacy.keys[0].env", "the name of an environment variable, in capitals, digits and underscores", "k" * 40),
    ("privacy.keys[0].file", "the absolute path of a file", "key"),
    ("denial.partition_key", "a mapping", "k" * 40),
    ("denial.partition_key.file", "the absolute path of a file", "k" * 40),
]


def at(path: str, value: object) -> dict[str, Any]:
    """Return a configuration with one value; a limit around it is complete."""
    parts = re.findall(r"\w+|\[0\]", path)
    for part, above in reversed(list(zip(parts, ["", *parts], strict=False))):
        if part == "[0]":
            value = [value]
        else:
            is_in_limit = above == "[0]" and "limits" in path
            value = {"limit": 10, "window": "60s", part: value} if is_in_limit else {part: value}
    assert isinstance(value, dict)
    return value


def refused(rows: list[tuple[str, str, list[object]]]) -> Iterator[tuple[dict[Any, Any], str]]:
    """Yield a configuration with each value of a table, and the message for it."""
    for path, allowed, values in rows:
        for value in values:
            shown = "a list" if isinstance(value, list) else "a mapping" if isinstance(value, dict) else None
            yield at(path, value), f"{path}: got {shown or json.dumps(value, ensure_ascii=False)}, allowed: {allowed}"


# Messages that are of another form.
SPECIAL: list[tuple[dict[Any, Any], str]] = [
    (at("limits.user", [f"1/{window}s" for window in range(1, 102)]), TOO_MANY),
    *((at(path, value), f"{path}: got text not shown here, allowed: {allowed}") for path, allowed, value in SECRET),
    (at("limits.user[0].name", "n" * 65), f'limits.user[0].name: got "{"n" * 60}…", allowed: {POLICY_NAME}'),
    (at("sync.interval", "9" * 5000 + "s"), f'sync.interval: got "{"9" * 60}…", allowed: 10 ms to 1 h {DURATION}'),
    (at("limits.user[0]", "9" * 400 + "/day"), f'limits.user[0]: got "{"9" * 60}…", allowed: {RATES}'),
    (
        at("limits.user[0]", "1/s;" * 200),
        f'limits.user[0]: got "{"1/s;" * 15}…", allowed: up to 500 characters of {RATES}',
    ),
    (at("denial.error_uri", "ftp://example.com"), f'denial.error_uri: got "ftp://…", allowed: {ADDRESS}'),
    ({"limits": {"user": [{"limit": 1}]}}, "limits.user[0].window: missing"),
    ({"grants": {"": {}}}, f'grants."": got "", allowed: {GRANT_TYPE}'),
    ({"grants": {"refresh token": {}}}, f'grants."refresh token": got "refresh token", allowed: {GRANT_TYPE}'),
    ({"plans": {"a b": {}}}, f'plans."a b": got "a b", allowed: {NAME}'),
    ({"clients": {"": {}}}, f'clients."": got "", allowed: {CLIENT_ID}'),
    ({"endpoints": {"token": {}}}, f'endpoints.token: got "token", allowed: {ENDPOINT}'),
    ({"endpoints": {"a/b": {}}}, f'endpoints."a/b": got "a/b", allowed: {ENDPOINT}'),
]
SPECIAL_BEYOND_A_SCHEMA: list[tuple[dict[Any, Any], str]] = [
    (at("limits.user[0].limit", 10**5000), f"limits.user[0].limit: got a huge number, allowed: {AMOUNT}"),
    (at("limits.user[0].limit", float("nan")), f"limits.user[0].limit: got nan, allowed: {AMOUNT}"),
    (at("limits.user[0].window", float("inf")), f"limits.user[0].window: got inf, allowed: {WINDOW}"),
    (at("canary.percent", float("nan")), "canary.percent: got nan, allowed: a number from 0 to 100"),
    ({"grants": {5: {}}}, f"grants.5: got 5, allowed: {GRANT_TYPE}"),
    (
        at("limits.user", [{"limit": 1, "window": 1, "name": "user-60s"}, "2/minute"]),
        "limits.user: several limits have the name user-60s; give each a name of its own",
    ),
    (
        at("guard.limits.address", ["1/minute", "2/minute"]),
        "guard.limits.address: several limits have the name failures-address-60s; give each a name of its own",
    ),
    (
        {"limits": {"user": ["1/minute"], "client_total": [{"limit": 9, "window": 9, "name": "user"}]}},
        "limits: user and client_total both have a limit with the name user; give each a name of its own",
    ),
    (
        {
            "limits": {"client_total": ["5/second"]},
            "clients": {"app": {"limits": {"user": [{"limit": 1, "window": 1, "name": "client_total"}]}}},
        },
        "clients.app: user and client_total both have a limit with the name client_total; give each a name of its own",
    ),
    (
        {
            "limits": {"client_total": ["5/second"]},
            "grants": {"password": {"limits": {"user": [{"limit": 1, "window": 1, "name": "client_total"}]}}},
            "clients": {"app": {"limits": {"client": ["9/second"]}}},
        },
        "grants.password: user and client_total both have a limit with the name client_total; "
        "give each a name of its own",
    ),
    (
        {
            "grants": {"password": {"limits": {"client_total": ["5/second"]}}},
            "clients": {"app": {"limits": {"user": [{"limit": 1, "window": 1, "name": "client_total"}]}}},
        },
        "clients.app.grants.password: user and client_total both have a limit with the name client_total; "
        "give each a name of its own",
    ),
    (
        {
            "clients": {
                "app": {
                    "limits": {"user": ["1/s"], "client_total": [{"limit": 1, "window": 1, "name": "user"}]},
                    "grants": {"password": {"mode": "off"}},
                }
            }
        },
        "clients.app: user and client_total both have a limit with the name user; give each a name of its own",
    ),
    (
        {"grants": {"device_code": {}, "urn:ietf:params:oauth:grant-type:device_code": {}}},
        "grants: device_code and urn:ietf:params:oauth:grant-type:device_code are the same grant type",
    ),
    ({"canary": {"instances": []}}, "canary: needs either percent or instances"),
    ({"canary": {"percent": 5, "instances": ["a"]}}, "canary: needs either percent or instances"),
    (at("clients.app.plan", "gold"), 'clients.app.plan: got "gold", allowed: none, because plans is empty'),
    (
        {"plans": {"gold": {"endpoints": {"userinfo": {}}}}, "endpoints": {"revocation": {}}},
        'plans.gold.endpoints.userinfo: got "userinfo", allowed: revocation',
    ),
    (at("limits.user", [*(f"1/{window}s" for window in range(1, 100)), "1/100s; 1/101s"]), TOO_MANY),
]

# Unknown keys by their path, with the keys that are allowed there.
UNKNOWN = {
    "clients.app.limits.user_total": "client, user, client_total",
    "limts": "mode, enabled, instance, limits, grants, trusted_clients, plans, clients, endpoints, canary, "
    "store, sync, denial, guard, reuse, events, statistics, privacy, host, max_keys",
    "limits.user[0].windw": "mode, enabled, limit, window, name, frames, estimator, count_denied, on_limit",
    "clients.app.grants.password.path": SWITCH,
    "guard.limits.name": "user, passed_on, passed_on_total, client, client_address, address",
}

EXPRESSIBLE = [
    *refused(REFUSED),
    *((at(path, 1), f"{path}: unknown key, allowed: {allowed}") for path, allowed in UNKNOWN.items()),
    *SPECIAL,
]
BAD = [*EXPRESSIBLE, *refused(BEYOND_A_SCHEMA), *SPECIAL_BEYOND_A_SCHEMA]


@pytest.mark.parametrize(("values", "expected"), BAD, ids=[line.partition(",")[0][:80] for _, line in BAD])
def test_bad_value_is_refused_with_path_value_and_what_is_allowed(values: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(values)
    (problem,) = caught.value.problems
    assert expected == re.split("; (?:for example|did you mean|in quotes) ", problem)[0]


def test_every_key_has_a_bad_value() -> None:
    named = {part for _, line in BAD for part in re.split(r"[.\[]", line.partition(": ")[0])}
    assert {key for section in FILE.sections for key in section.keys} <= named


def test_all_problems_are_reported_at_once_in_the_order_of_the_keys() -> None:
    """Overrides come after the file."""
    values = {
        "mode": "on",
        "limits": {"user": [{"limit": 0, "window": 0, "frames": 0}, {"limit": 0, "window": 60, "frames": 7}, "x"]},
        "clients": {"app": {"plan": "gold", "limits": {"client": [{"limit": 1, "window": "1.5s"}]}}},
        "surprise": 1,
    }
    with pytest.raises(ConfigError) as caught:
        load_config(values, mode="never", uri="localhost")
    assert [problem.partition(":")[0] for problem in caught.value.problems] == [
        "mode",
        "limits.user[0].limit",
        "limits.user[0].window",
        "limits.user[0].frames",
        "limits.user[1].limit",
        "limits.user[1].frames",
        "limits.user[2]",
        "clients.app.limits.client[0].window",
        "clients.app.plan",
        "surprise",
        "OAUTH_RATELIMIT_MODE",
        "OAUTH_RATELIMIT_MONGO_URI",
    ]


@pytest.mark.parametrize("limits", [["no limit"] * 9000, [{"limit": 1, "window": "1m"}] * 9000, ["1/s"] * 9000])
def test_too_many_limits_are_refused_without_a_look_at_them(limits: list[Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config({"limits": {"client": limits}})
    assert caught.value.problems == (
        "limits.client: got 9000 limits, allowed: at most 100, because each key counts in all",
    )


def test_problems_beyond_a_thousand_are_counted() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config({"clients": {f"client-{number}": {"limts": {}} for number in range(1500)}})
    assert len(caught.value.problems) == 1001
    assert caught.value.problems[-1] == "and 500 more"
