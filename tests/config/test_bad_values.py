"""Every key of the configuration with values that it must not have, and the message each gets."""

from typing import Any

import pytest

from oauth_ratelimit.config import load_config
from oauth_ratelimit.config.settings import FILE
from oauth_ratelimit.errors import ConfigError

DURATION = "(seconds as a number, or text such as 500ms, 10s, 1m, 1h, 1d)"
AMOUNT = "allowed: a whole number from 1 to 2^53 (9007199254740992)"
WINDOW = f"allowed: whole seconds from 1 s to 366 days {DURATION}"
RATES = "allowed: text such as 100/minute, 5 per 10 second, 10/second; 100/hour"
NAME = "allowed: 1 to 64 letters, digits, dots, hyphens and underscores, the first a letter or digit"
POLICY_NAME = (
    "allowed: 1 to 64 printable ASCII characters other than quotation mark and backslash, no space at the ends"
)
MODE = "allowed: off, dry-run or enforce"
PATTERN = "allowed: text of 1 to 1024 characters, with * ? [] as in a shell"
CLIENT_ID = "allowed: text of 1 to 1024 characters; a number needs quotes"
ENDPOINT = (
    "allowed: 1 to 64 letters, digits, dots, hyphens and underscores, but neither token nor client_total "
    "(limits of the token endpoint stand under limits)"
)
INTERVAL = f"allowed: 10 ms to 1 h {DURATION}"
GRANT_TYPE = "allowed: a grant type, such as refresh_token"
ADDRESS = "allowed: an http or https address in ASCII, up to 1000 characters"
COLLECTION = "allowed: 1 to 120 letters, digits, dots, hyphens and underscores, the first a letter or underscore"
ERROR_CODE = "allowed: 1 to 64 printable ASCII characters other than quotation mark and backslash"
DESCRIPTION = "allowed: 1 to 500 printable ASCII characters other than quotation mark and backslash"
URI = "allowed: text that begins with mongodb:// or mongodb+srv://"
ITEM = "allowed: a mapping with limit and window, or text such as 100/minute, 5 per 10 second, 10/second; 100/hour"
FRAMES = "allowed: a whole number from 1 to 3600 that divides the window"
HEADER = "allowed: the name of an HTTP header, such as X-Request-ID"


def a_limit(**options: object) -> dict[str, Any]:
    """Return a configuration whose only limit has these options."""
    return {"limits": {"user": [{"limit": 10, "window": "60s"} | options]}}


TOP_LEVEL = [
    ({"mode": "Enforce"}, f'mode: got "Enforce", {MODE}'),
    ({"mode": True}, f"mode: got true, {MODE}"),
    ({"mode": None}, f"mode: got null, {MODE}"),
    ({"mode": ["off"]}, f"mode: got a list, {MODE}"),
    ({"enabled": "false"}, 'enabled: got "false", allowed: true or false'),
    ({"enabled": 0}, "enabled: got 0, allowed: true or false"),
    ({"instance": ""}, 'instance: got "", allowed: text of 1 to 255 characters'),
    ({"instance": 7}, "instance: got 7, allowed: text of 1 to 255 characters"),
    ({"max_keys": 0}, "max_keys: got 0, allowed: a whole number from 1 to 1000000000"),
    ({"max_keys": 1.5}, "max_keys: got 1.5, allowed: a whole number from 1 to 1000000000"),
    ({"max_keys": True}, "max_keys: got true, allowed: a whole number from 1 to 1000000000"),
    ({"max_keys": 10**10}, "max_keys: got 10000000000, allowed: a whole number from 1 to 1000000000"),
    ({"trusted_clients": "app"}, 'trusted_clients: got "app", allowed: a list'),
    ({"trusted_clients": None}, "trusted_clients: got null, allowed: a list"),
    ({"trusted_clients": [""]}, f'trusted_clients[0]: got "", {PATTERN}'),
    ({"trusted_clients": ["a", 17]}, f"trusted_clients[1]: got 17, {PATTERN}"),
    (
        {"limts": {}},
        "limts: unknown key, allowed: mode, enabled, instance, store, sync, limits, grants, trusted_clients, plans, "
        "clients, endpoints, canary, denial, guard, events, statistics, privacy, max_keys",
    ),
    ({1: 2}, "1: got 1, allowed: text; put it in quotes"),
    *(
        ({section: value}, f"{section}: got {shown}, allowed: a mapping")
        for section in ("store", "sync", "limits", "grants", "plans", "clients", "endpoints", "canary", "denial")
        for value, shown in ((["x"], "a list"), (3, "3"))
    ),
    *(
        ({section: None}, f"{section}: got null, allowed: a mapping")
        for section in ("store", "sync", "limits", "grants", "plans", "clients", "endpoints", "denial")
    ),
]

LIMITS = [
    (a_limit(limit=0), f"limits.user[0].limit: got 0, {AMOUNT}"),
    (a_limit(limit=-1), f"limits.user[0].limit: got -1, {AMOUNT}"),
    (a_limit(limit=1.5), f"limits.user[0].limit: got 1.5, {AMOUNT}"),
    (a_limit(limit=5.0), f"limits.user[0].limit: got 5.0, {AMOUNT}"),
    (a_limit(limit=2**53 + 1), f"limits.user[0].limit: got 9007199254740993, {AMOUNT}"),
    (a_limit(limit=10**20), f"limits.user[0].limit: got 100000000000000000000, {AMOUNT}"),
    (a_limit(limit=10**5000), f"limits.user[0].limit: got a huge number, {AMOUNT}"),
    (a_limit(limit="10"), f'limits.user[0].limit: got "10", {AMOUNT}'),
    (a_limit(limit=True), f"limits.user[0].limit: got true, {AMOUNT}"),
    (a_limit(limit=None), f"limits.user[0].limit: got null, {AMOUNT}"),
    (a_limit(limit=float("nan")), f"limits.user[0].limit: got nan, {AMOUNT}"),
    (a_limit(window=0), f"limits.user[0].window: got 0, {WINDOW}"),
    (a_limit(window=-60), f"limits.user[0].window: got -60, {WINDOW}"),
    (a_limit(window=1.5), f"limits.user[0].window: got 1.5, {WINDOW}"),
    (a_limit(window="500ms"), f'limits.user[0].window: got "500ms", {WINDOW}'),
    (a_limit(window="60"), f'limits.user[0].window: got "60", {WINDOW}'),
    (a_limit(window="1 minute"), f'limits.user[0].window: got "1 minute", {WINDOW}'),
    (a_limit(window="367d"), f'limits.user[0].window: got "367d", {WINDOW}'),
    (a_limit(window=10**20), f"limits.user[0].window: got 100000000000000000000, {WINDOW}"),
    (a_limit(window=float("inf")), f"limits.user[0].window: got inf, {WINDOW}"),
    (a_limit(window=True), f"limits.user[0].window: got true, {WINDOW}"),
    (a_limit(window=None), f"limits.user[0].window: got null, {WINDOW}"),
    (
        a_limit(frames=7),
        "limits.user[0].frames: got 7, allowed: a number that divides the window of 60 s into whole seconds",
    ),
    (a_limit(frames=0), f"limits.user[0].frames: got 0, {FRAMES}"),
    (a_limit(frames=-2), f"limits.user[0].frames: got -2, {FRAMES}"),
    (a_limit(frames=3601, window="1d"), f"limits.user[0].frames: got 3601, {FRAMES}"),
    (a_limit(frames=2.0), f"limits.user[0].frames: got 2.0, {FRAMES}"),
    (a_limit(frames="2"), f'limits.user[0].frames: got "2", {FRAMES}'),
    (a_limit(frames=True), f"limits.user[0].frames: got true, {FRAMES}"),
    (a_limit(name=""), f'limits.user[0].name: got "", {POLICY_NAME}'),
    (a_limit(name=" x"), f'limits.user[0].name: got " x", {POLICY_NAME}'),
    (a_limit(name='say "x"'), f'limits.user[0].name: got "say \\"x\\"", {POLICY_NAME}'),
    (a_limit(name="a\nb"), f'limits.user[0].name: got "a\\nb", {POLICY_NAME}'),
    (a_limit(name="für"), f'limits.user[0].name: got "für", {POLICY_NAME}'),
    (a_limit(name="n" * 65), f'limits.user[0].name: got "{"n" * 60}…", {POLICY_NAME}'),
    (a_limit(name=5), f"limits.user[0].name: got 5, {POLICY_NAME}"),
    (a_limit(estimator="exact"), 'limits.user[0].estimator: got "exact", allowed: sliding or proportional'),
    (a_limit(estimator=None), "limits.user[0].estimator: got null, allowed: sliding or proportional"),
    (a_limit(count_denied=1), "limits.user[0].count_denied: got 1, allowed: true or false"),
    (a_limit(count_denied="yes"), 'limits.user[0].count_denied: got "yes", allowed: true or false'),
    (a_limit(mode="shadow"), f'limits.user[0].mode: got "shadow", {MODE}'),
    (a_limit(enabled="no"), 'limits.user[0].enabled: got "no", allowed: true or false'),
    (
        a_limit(windw=1),
        "limits.user[0].windw: unknown key, allowed: mode, enabled, limit, window, name, frames, estimator, "
        "count_denied",
    ),
    ({"limits": {"user": [{"limit": 1}]}}, "limits.user[0].window: missing"),
    ({"limits": {"user": [{"window": 1}]}}, "limits.user[0].limit: missing"),
    (
        {"limits": {"user": ["0/minute"]}},
        'limits.user[0]: got "0/minute", allowed: 1 to 2^53 requests per 1 second to 366 days',
    ),
    (
        {"limits": {"user": ["1/0 second"]}},
        'limits.user[0]: got "1/0 second", allowed: 1 to 2^53 requests per 1 second to 366 days',
    ),
    (
        {"limits": {"user": ["1/2 years"]}},
        'limits.user[0]: got "1/2 years", allowed: 1 to 2^53 requests per 1 second to 366 days',
    ),
    ({"limits": {"user": ["ten/minute"]}}, f'limits.user[0]: got "ten/minute", {RATES}'),
    ({"limits": {"user": ["1/minute;"]}}, f'limits.user[0]: got "1/minute;", {RATES}'),
    ({"limits": {"user": [""]}}, f'limits.user[0]: got "", {RATES}'),
    ({"limits": {"user": [17]}}, f"limits.user[0]: got 17, {ITEM}"),
    ({"limits": {"user": [None]}}, f"limits.user[0]: got null, {ITEM}"),
    ({"limits": {"user": [[]]}}, f"limits.user[0]: got a list, {ITEM}"),
    ({"limits": {"user": "1/minute"}}, 'limits.user: got "1/minute", allowed: a list'),
    ({"limits": {"user": None}}, "limits.user: got null, allowed: a list"),
    ({"limits": {"client": {"limit": 1}}}, "limits.client: got a mapping, allowed: a list"),
    ({"limits": {"client_total": 5}}, "limits.client_total: got 5, allowed: a list"),
    ({"limits": {"users": []}}, "limits.users: unknown key, allowed: client, user, client_total"),
    (
        {"limits": {"user": ["1/minute", "2/minute"]}},
        "limits.user: several limits have the name user-60s; give each a name of its own",
    ),
    (
        {"limits": {"user": [{"limit": 1, "window": 1, "name": "user-60s"}, "2/minute"]}},
        "limits.user: several limits have the name user-60s; give each a name of its own",
    ),
    (
        {"limits": {"user": ["1/minute"], "client_total": [{"limit": 9, "window": 9, "name": "user"}]}},
        "limits: user and client_total both have a limit with the name user; give each a name of its own",
    ),
]

PLACES = [
    ({"grants": {"": {}}}, f'grants."": got "", {GRANT_TYPE}'),
    ({"grants": {"refresh token": {}}}, f'grants."refresh token": got "refresh token", {GRANT_TYPE}'),
    ({"grants": {5: {}}}, f"grants.5: got 5, {GRANT_TYPE}"),
    ({"grants": {"password": None}}, "grants.password: got null, allowed: a mapping"),
    ({"grants": {"password": {"mode": "on"}}}, f'grants.password.mode: got "on", {MODE}'),
    ({"grants": {"password": {"enabled": 1}}}, "grants.password.enabled: got 1, allowed: true or false"),
    ({"grants": {"password": {"limits": []}}}, "grants.password.limits: got a list, allowed: a mapping"),
    (
        {"grants": {"password": {"limit": {}}}},
        "grants.password.limit: unknown key, allowed: mode, enabled, limits",
    ),
    (
        {"grants": {"password": {"limits": {"user": [{"limit": 0, "window": 1}]}}}},
        f"grants.password.limits.user[0].limit: got 0, {AMOUNT}",
    ),
    (
        {"grants": {"device_code": {}, "urn:ietf:params:oauth:grant-type:device_code": {}}},
        "grants: device_code and urn:ietf:params:oauth:grant-type:device_code are the same grant type",
    ),
    ({"endpoints": {"token": {}}}, f'endpoints.token: got "token", {ENDPOINT}'),
    ({"endpoints": {"client_total": {}}}, f'endpoints.client_total: got "client_total", {ENDPOINT}'),
    ({"endpoints": {"a/b": {}}}, f'endpoints."a/b": got "a/b", {ENDPOINT}'),
    ({"endpoints": {"revocation": []}}, "endpoints.revocation: got a list, allowed: a mapping"),
    ({"endpoints": {"revocation": {"mode": 1}}}, f"endpoints.revocation.mode: got 1, {MODE}"),
    (
        {"endpoints": {"revocation": {"enabled": None}}},
        "endpoints.revocation.enabled: got null, allowed: true or false",
    ),
    ({"endpoints": {"revocation": {"path": "/x"}}}, 'endpoints.revocation.path: got "/x", allowed: a list'),
    ({"endpoints": {"revocation": {"path": [""]}}}, f'endpoints.revocation.path[0]: got "", {PATTERN}'),
    (
        {"endpoints": {"revocation": {"method": ["post"]}}},
        'endpoints.revocation.method[0]: got "post", allowed: an HTTP method in capitals, such as POST',
    ),
    (
        {"endpoints": {"revocation": {"limits": {"client": [{"limit": 1, "window": 10, "frames": 3}]}}}},
        "endpoints.revocation.limits.client[0].frames: got 3, "
        "allowed: a number that divides the window of 10 s into whole seconds",
    ),
    (
        {"endpoints": {"revocation": {"grants": {}}}},
        "endpoints.revocation.grants: unknown key, allowed: mode, enabled, limits, path, method",
    ),
    (
        {"canary": {}},
        "canary: needs either percent or instances",
    ),
    ({"canary": {"percent": 5, "instances": ["a"]}}, "canary: needs either percent or instances"),
    ({"canary": {"percent": 101}}, "canary.percent: got 101, allowed: a number from 0 to 100"),
    ({"canary": {"percent": -1}}, "canary.percent: got -1, allowed: a number from 0 to 100"),
    ({"canary": {"percent": "10%"}}, 'canary.percent: got "10%", allowed: a number from 0 to 100'),
    ({"canary": {"percent": True}}, "canary.percent: got true, allowed: a number from 0 to 100"),
    ({"canary": {"percent": float("nan")}}, "canary.percent: got nan, allowed: a number from 0 to 100"),
    ({"canary": {"percent": 5, "salt": 2024}}, "canary.salt: got 2024, allowed: text; put it in quotes"),
    ({"canary": {"instances": []}}, "canary.instances: got a list, allowed: a list with at least one item"),
    ({"canary": {"instances": "node-1"}}, 'canary.instances: got "node-1", allowed: a list'),
    ({"canary": {"share": 5}}, "canary.share: unknown key, allowed: percent, salt, instances"),
]

CLIENTS = [
    ({"clients": {"": {}}}, f'clients."": got "", {CLIENT_ID}'),
    ({"clients": {12345: {}}}, f"clients.12345: got 12345, {CLIENT_ID}"),
    ({"clients": {"app": None}}, "clients.app: got null, allowed: a mapping"),
    ({"clients": {"app": {"mode": "enforced"}}}, f'clients.app.mode: got "enforced", {MODE}'),
    ({"clients": {"app": {"enabled": "no"}}}, 'clients.app.enabled: got "no", allowed: true or false'),
    (
        {"clients": {"app": {"limits": {"user": [{"limit": 0, "window": 1}]}}}},
        f"clients.app.limits.user[0].limit: got 0, {AMOUNT}",
    ),
    ({"clients": {"app": {"limits": {"user": ["x"]}}}}, f'clients.app.limits.user[0]: got "x", {RATES}'),
    (
        {"clients": {"https://app.example/": {"limits": {"users": []}}}},
        'clients."https://app.example/".limits.users: unknown key, allowed: client, user, client_total',
    ),
    ({"clients": {"app": {"plan": "gold"}}}, 'clients.app.plan: got "gold", allowed: none, because plans is empty'),
    (
        {"clients": {"app": {"plan": "gold"}}, "plans": {"silver": {}, "bronze": {}}},
        'clients.app.plan: got "gold", allowed: silver, bronze',
    ),
    ({"clients": {"app": {"plan": 5}}}, f"clients.app.plan: got 5, {NAME}"),
    (
        {"clients": {"app": {"endpoints": {"userinfo": {}}}}},
        'clients.app.endpoints: got "userinfo", allowed: none, because endpoints is empty',
    ),
    (
        {"clients": {"app": {"endpoints": {"userinfo": {"path": []}}}}, "endpoints": {"userinfo": {}}},
        "clients.app.endpoints.userinfo.path: unknown key, allowed: mode, enabled, limits",
    ),
    (
        {"clients": {"app": {"grants": {"password": {"limits": {"client": [3]}}}}}},
        f"clients.app.grants.password.limits.client[0]: got 3, {ITEM}",
    ),
    (
        {"clients": {"app": {"trusted": True}}},
        "clients.app.trusted: unknown key, allowed: mode, enabled, limits, grants, endpoints, plan",
    ),
    (
        {
            "limits": {"client_total": ["5/second"]},
            "clients": {"app": {"limits": {"user": [{"limit": 1, "window": 1, "name": "client_total"}]}}},
        },
        "clients.app: user and client_total both have a limit with the name client_total; give each a name of its own",
    ),
    ({"plans": {"a b": {}}}, f'plans."a b": got "a b", {NAME}'),
    ({"plans": {"gold": None}}, "plans.gold: got null, allowed: a mapping"),
    ({"plans": {"gold": {"mode": "x"}}}, f'plans.gold.mode: got "x", {MODE}'),
    ({"plans": {"gold": {"enabled": 1}}}, "plans.gold.enabled: got 1, allowed: true or false"),
    (
        {"plans": {"gold": {"limits": {"user": [{"limit": 0, "window": 1}]}}}},
        f"plans.gold.limits.user[0].limit: got 0, {AMOUNT}",
    ),
    (
        {"plans": {"gold": {"plan": "silver"}}},
        "plans.gold.plan: unknown key, allowed: mode, enabled, limits, grants, endpoints",
    ),
    (
        {"plans": {"gold": {"endpoints": {"userinfo": {}}}}, "endpoints": {"revocation": {}}},
        'plans.gold.endpoints: got "userinfo", allowed: revocation',
    ),
    ({"plans": {"gold": {"grants": {"": {}}}}}, f'plans.gold.grants."": got "", {GRANT_TYPE}'),
]

STORE = [
    ({"store": {"uri": "http://localhost"}}, f"store.uri: got another text, {URI}"),
    ({"store": {"uri": "mongodb://"}}, f"store.uri: got another text, {URI}"),
    ({"store": {"uri": 27017}}, f"store.uri: got 27017, {URI}"),
    (
        {"store": {"collection": ""}},
        f'store.collection: got "", {COLLECTION}',
    ),
    (
        {"store": {"collection": "$cmd"}},
        f'store.collection: got "$cmd", {COLLECTION}',
    ),
    ({"store": {"namespace": "a b"}}, f'store.namespace: got "a b", {NAME}'),
    ({"store": {"timeout": 0}}, f"store.timeout: got 0, allowed: 10 ms to 60 s {DURATION}"),
    ({"store": {"timeout": "2m"}}, f'store.timeout: got "2m", allowed: 10 ms to 60 s {DURATION}'),
    ({"store": {"url": "mongodb://localhost"}}, "store.url: unknown key, allowed: uri, collection, namespace, timeout"),
    ({"store": "localhost"}, "store: got another text, allowed: a mapping"),
    ({"sync": {"interval": 0}}, f"sync.interval: got 0, {INTERVAL}"),
    ({"sync": {"interval": "1 second"}}, f'sync.interval: got "1 second", {INTERVAL}'),
    ({"sync": {"interval": "2h"}}, f'sync.interval: got "2h", {INTERVAL}'),
    ({"sync": {"interval": False}}, f"sync.interval: got false, {INTERVAL}"),
    ({"sync": {"near_limit": "reject"}}, 'sync.near_limit: got "reject", allowed: flush or reserve'),
    ({"sync": {"deadline": 0}}, f"sync.deadline: got 0, allowed: 1 ms to 10 s {DURATION}"),
    ({"sync": {"deadline": "11s"}}, f'sync.deadline: got "11s", allowed: 1 ms to 10 s {DURATION}'),
    ({"sync": {"preload": -1}}, "sync.preload: got -1, allowed: a whole number from 0 to 1000000"),
    ({"sync": {"every": 1}}, "sync.every: unknown key, allowed: interval, near_limit, deadline, preload"),
    (
        {"denial": {"error": ""}},
        f'denial.error: got "", {ERROR_CODE}',
    ),
    (
        {"denial": {"error": "zu_früh"}},
        f'denial.error: got "zu_früh", {ERROR_CODE}',
    ),
    (
        {"denial": {"error_description": "a\\b"}},
        f'denial.error_description: got "a\\\\b", {DESCRIPTION}',
    ),
    (
        {"denial": {"error_description": "a\n"}},
        f'denial.error_description: got "a\\n", {DESCRIPTION}',
    ),
    ({"denial": {"error_uri": "docs/reuse"}}, f'denial.error_uri: got "docs/reuse", {ADDRESS}'),
    ({"denial": {"error_uri": "ftp://example.com"}}, f'denial.error_uri: got "ftp://…", {ADDRESS}'),
    ({"denial": {"error_uri": "https://example.com/a b"}}, f'denial.error_uri: got "https://…", {ADDRESS}'),
    ({"denial": {"headers": "ietf"}}, 'denial.headers: got "ietf", allowed: a list'),
    ({"denial": {"headers": ["IETF"]}}, 'denial.headers[0]: got "IETF", allowed: ietf or x-ratelimit'),
    ({"denial": {"status": 403}}, "denial.status: unknown key, allowed: error, error_description, error_uri, headers"),
]

TELLING = [
    ({"events": {"per_minute": 0}}, "events.per_minute: got 0, allowed: a whole number from 1 to 1000000"),
    ({"events": {"keep_denials": -1}}, f"events.keep_denials: got -1, allowed: 0 to 366 days {DURATION}"),
    ({"statistics": {"keep": -1}}, f"statistics.keep: got -1, allowed: 0 to 366 days {DURATION}"),
    (
        {"statistics": {"clients_per_minute": 0}},
        "statistics.clients_per_minute: got 0, allowed: a whole number from 1 to 100000",
    ),
    (
        {"statistics": {"users_per_client": 1001}},
        "statistics.users_per_client: got 1001, allowed: a whole number from 0 to 1000",
    ),
    (
        {"statistics": {"token_lifetime": 0}},
        f"statistics.token_lifetime: got 0, allowed: 1 s to 366 days {DURATION}",
    ),
    ({"statistics": "on"}, 'statistics: got "on", allowed: a mapping'),
    ({"events": {"keep_denials": "367d"}}, f'events.keep_denials: got "367d", allowed: 0 to 366 days {DURATION}'),
    ({"events": {"request_id_header": "X Request"}}, f'events.request_id_header: got "X Request", {HEADER}'),
    ({"events": {"request_id_header": ""}}, f'events.request_id_header: got "", {HEADER}'),
    ({"privacy": "hashed"}, "privacy: got another text, allowed: a mapping"),
    ({"privacy": {"user_names": "secret"}}, 'privacy.user_names: got "secret", allowed: plain or hashed'),
    ({"privacy": {"keys": "k" * 40}}, "privacy.keys: got another text, allowed: a list"),
    (
        {"privacy": {"keys": [{"env": "k" * 40}]}},
        "privacy.keys[0].env: got another text, allowed: the name of an environment variable, in capitals, digits and "
        "underscores",
    ),
    (
        {"privacy": {"keys": [{"file": "key"}]}},
        "privacy.keys[0].file: got another text, allowed: the absolute path of a file",
    ),
]

NETWORK = (
    "allowed: an address or a network, such as 192.0.2.7, 10.0.0.0/8 or 2001:db8::/32, with no bits beyond its length"
)
GUARD = [
    ({"guard": []}, "guard: got a list, allowed: a mapping"),
    ({"guard": {"mode": "on"}}, f'guard.mode: got "on", {MODE}'),
    ({"guard": {"limit": 1}}, "guard.limit: unknown key, allowed: mode, limits, trusted_addresses, max_keys"),
    ({"guard": {"max_keys": 0}}, "guard.max_keys: got 0, allowed: a whole number from 1 to 1000000000"),
    ({"guard": {"limits": {"name": []}}}, "guard.limits.name: unknown key, allowed: user, passed_on, client, address"),
    ({"guard": {"limits": {"user": ["ten"]}}}, f'guard.limits.user[0]: got "ten", {RATES}'),
    ({"guard": {"limits": {"passed_on": [5]}}}, f"guard.limits.passed_on[0]: got 5, {ITEM}"),
    ({"guard": {"limits": {"client": [5]}}}, f"guard.limits.client[0]: got 5, {ITEM}"),
    (
        {"guard": {"limits": {"address": ["1/minute", "2/minute"]}}},
        "guard.limits.address: several limits have the name failures-address-60s; give each a name of its own",
    ),
    ({"guard": {"trusted_addresses": "::1"}}, 'guard.trusted_addresses: got "::1", allowed: a list'),
    ({"guard": {"trusted_addresses": ["10.0.0.1/8"]}}, f'guard.trusted_addresses[0]: got "10.0.0.1/8", {NETWORK}'),
    ({"guard": {"trusted_addresses": [1]}}, f"guard.trusted_addresses[0]: got 1, {NETWORK}"),
    ({"guard": {"trusted_addresses": ["example.com"]}}, f'guard.trusted_addresses[0]: got "example.com", {NETWORK}'),
]
BAD = [*TOP_LEVEL, *LIMITS, *PLACES, *CLIENTS, *STORE, *TELLING, *GUARD]


@pytest.mark.parametrize(("values", "expected"), BAD, ids=[line.partition(",")[0][:80] for _, line in BAD])
def test_value_that_is_not_allowed(values: dict[str, Any], expected: str) -> None:
    """A bad value is refused in one line: the path of the key, what was found, what is allowed."""
    with pytest.raises(ConfigError) as caught:
        load_config(values)
    assert (expected,) == caught.value.problems


def test_every_key_has_a_bad_value() -> None:
    """No key of the file is without a line above."""
    every_key = {key for section in FILE.sections for key in section.keys}
    named = {part for _, line in BAD for part in line.partition(": ")[0].replace("[", ".").split(".")}
    assert set() == every_key - named


def test_everything_at_once() -> None:
    """All problems of a configuration are named together, in the order of the keys."""
    values = {
        "mode": "on",
        "limits": {"user": [{"limit": 0, "window": 0, "frames": 0}, "x"], "clients": []},
        "clients": {"app": {"plan": "gold", "limits": {"client": [{"limit": 1, "window": "1.5s"}]}}},
        "surprise": 1,
    }
    with pytest.raises(ConfigError) as caught:
        load_config(values, mode="never", uri="localhost")
    paths = [problem.partition(":")[0] for problem in caught.value.problems]
    assert paths == [
        "mode",
        "limits.user[0].limit",
        "limits.user[0].window",
        "limits.user[0].frames",
        "limits.user[1]",
        "limits.clients",
        "clients.app.limits.client[0].window",
        "surprise",
        "OAUTH_RATELIMIT_MODE",
        "OAUTH_RATELIMIT_MONGO_URI",
        "clients.app.plan",
    ]


@pytest.mark.parametrize(
    "values",
    [
        {"store": {"uri": "mongo://app:hunter2@db"}},
        {"store": {"uri": "mongodb:app:hunter2@db"}},
        {"store": {"url": "mongodb://app:hunter2@db"}},
        {"store": "mongodb://app:hunter2@db"},
        {"store": ["mongodb://app:hunter2@db"]},
        {"store": {"uri": ["mongodb://app:hunter2@db"]}},
        {"store": {"password": "hunter2"}},
        {"store": {"collection": "mongodb://app:hunter2@db"}},
        {"mode": "mongodb+srv://app:hunter2@db"},
        {"uri": "mongodb://app:hunter2@db"},
        {"store": {"uri": "mongodb://app:hunter2@db"}, "mode": 1},
        {"digest": {"url": "https://app:hunter2@example.com", "secret": "hunter2"}},
    ],
    ids=repr,
)
def test_password_in_the_wrong_place(values: dict[str, Any]) -> None:
    """No message, and nothing that a traceback shows, holds a password."""
    with pytest.raises(ConfigError) as caught:
        load_config(values)
    error = caught.value
    assert "hunter2" not in f"{error} {error!r}"
    assert (error.__cause__, error.__context__) == (None, None)


def test_password_in_settings() -> None:
    """Settings can be logged: their repr does not show the connection string."""
    settings = load_config({"store": {"uri": "mongodb://app:hunter2@db/oauth"}})
    assert settings.store.uri == "mongodb://app:hunter2@db/oauth"
    assert "hunter2" not in repr(settings)
