"""Tokens that are given out again: the CPU of such a request beside a new token, and what a needless client gets."""

import base64
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from io import BytesIO
from typing import Any
from urllib.parse import urlencode

from authlib.integrations.flask_oauth2 import AuthorizationServer
from authlib.oauth2.rfc6749.grants import ClientCredentialsGrant
from flask import Flask
from joserfc import jwt
from joserfc.jwk import RSAKey
from pymongo import MongoClient
from werkzeug.test import create_environ, run_wsgi_app

from benchmarks.measuring import take_turns, timed
from benchmarks.results import Result, median_of
from oauth_ratelimit import OAuthRateLimit
from testbed.clock import Clock
from testbed.mongod import running_mongodb
from testbed.oauth_server.models import Client
from testbed.trace import hits_from

CLIENT = Client("batch-jobs", "some-secret")
AUTHORIZATION = f"Basic {base64.b64encode(f'{CLIENT.client_id}:{CLIENT.client_secret}'.encode()).decode()}"
FORM = {"grant_type": "client_credentials"}
INSTANCE_COUNT = 10
LIMIT, WINDOW_S = 10, 60
FIRST_HIT, HIT_COUNT = 6000, 20_000  # as the demo's background traffic: from half past seven until one
SPEED = 100  # times faster than recorded, as the traffic behind the demo
LIFETIME_S = 3600
KEPT_LIMITS = {"user": [], "client_total": []}


class Site:
    """A server with one client, whose tokens are JWTs (RS256), or opaque and saved in MongoDB."""

    def __init__(self, kind: str, tokens: Any, configuration: dict[str, Any], clock: Callable[[], float]) -> None:
        self.issued_count = 0
        self._key = RSAKey.generate_key(2048)
        self._kind, self._tokens = kind, tokens
        self.app = app = Flask("some-app")
        server = AuthorizationServer(app, query_client=lambda _: CLIENT, save_token=self._save)
        server.register_grant(ClientCredentialsGrant)
        if kind == "JWT":
            server.register_token_generator("default", self._generate)
        app.add_url_rule("/token", "token", server.create_token_response, methods=["POST"])
        app.config["OAUTH_RATELIMIT_CONFIG"] = configuration
        OAuthRateLimit(app, server, clock=clock)
        self.app_limiter = app.extensions["oauth_ratelimit"]
        self._environ = create_environ("/token", method="POST", data=FORM, headers={"Authorization": AUTHORIZATION})

    def _generate(self, client: Any, **_: Any) -> dict[str, Any]:
        now_s = int(time.time())
        claims = {"iss": "https://as.example", "sub": client.client_id, "iat": now_s, "exp": now_s + LIFETIME_S}
        text = jwt.encode({"alg": "RS256", "typ": "at+jwt"}, claims | {"jti": f"{random.random()}"}, self._key)
        return {"token_type": "Bearer", "access_token": text, "expires_in": LIFETIME_S}

    def _save(self, token: dict[str, Any], _request: Any) -> None:
        self.issued_count += 1
        if self._kind == "opaque":
            self._tokens.insert_one({**token, "client_id": CLIENT.client_id})

    def ask(self) -> int:
        environ = {**self._environ, "wsgi.input": BytesIO(urlencode(FORM).encode())}  # a test client would cost more
        _, status, _ = run_wsgi_app(self.app.wsgi_app, environ, buffered=True)
        return int(status[:3])

    def burst(self) -> int:
        for _ in range(100):
            self.ask()
        return 100


def configuration(mode: str, on_limit: str, *, limit: int = LIMIT, **store: str) -> dict[str, Any]:
    limits = {**KEPT_LIMITS, "client": [{"limit": limit, "window": WINDOW_S, "on_limit": on_limit}]}
    return {"mode": mode, "limits": limits, "store": store, "sync": {"interval": "1h"}}


def run(*, short: bool) -> Iterator[Result]:
    with running_mongodb() as uri, MongoClient(uri, w="majority", journal=True) as client:
        tokens = client.get_database("tokens")["tokens"]
        yield from _cpu(tokens, turn_count=3 if short else 15)
        yield from _needless_client(uri, hit_count=2000 if short else HIT_COUNT)


def _cpu(tokens: Any, *, turn_count: int) -> Iterator[Result]:
    """Compare the CPU of a request that gets a new token, the same again, or a denial."""
    for kind in ("JWT", "opaque"):
        with ExitStack() as stack:
            sites = {
                "new": Site(kind, tokens, configuration("enforce", "reuse", limit=10**9), time.time),
                "reused": Site(kind, tokens, configuration("enforce", "reuse", limit=1), time.time),
                "denied": Site(kind, tokens, configuration("enforce", "deny", limit=1), time.time),
            }
            for site in sites.values():
                stack.callback(site.app_limiter.close)
            measures = {name: timed(site.burst, clock_ns=time.process_time_ns) for name, site in sites.items()}
            for name, values in take_turns(measures, turn_count=turn_count).items():
                yield median_of(f"reuse/CPU of a request/{kind}/{name}", [each / 1000 for each in values], "us")


def _needless_client(uri: str, *, hit_count: int) -> Iterator[Result]:
    """Replay the busiest host of the recorded traffic as a client that asks with every call, at ten instances."""
    hits = hits_from(FIRST_HIT, hit_count)
    busiest, _ = Counter(hit.host for hit in hits).most_common(1)[0]
    start_s = hits[0].at_s
    times = [2_000_000_000 + (hit.at_s - start_s) / SPEED for hit in hits if hit.host == busiest]
    steps = (("dry run", "dry-run", "reuse"), ("reuse", "enforce", "reuse"), ("deny", "enforce", "deny"))
    for name, mode, on_limit in steps:
        clock, draw = Clock(times[0]), random.Random(0)
        shared = configuration(mode, on_limit, uri=uri, namespace=name.replace(" ", "-"))
        with ExitStack() as stack:
            sites = [Site("JWT", None, shared, clock) for _ in range(INSTANCE_COUNT)]
            for site in sites:
                stack.callback(site.app_limiter.close)
            statuses: Counter[int] = Counter()
            for at_s in times:
                clock.now_s = at_s
                site = draw.choice(sites)
                site.app_limiter.limiter.sync()  # before and after, as in a few milliseconds of real time
                statuses[site.ask()] += 1
                site.app_limiter.limiter.sync()
            issued = sum(site.issued_count for site in sites)
        counts = {"requests": len(times), "issued": issued, "reused": statuses[200] - issued, "denied": statuses[429]}
        for what, count in counts.items():
            yield Result(f"reuse/needless client/{name}/{what}", count, "requests")
