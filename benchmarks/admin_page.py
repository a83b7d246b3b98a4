"""Processor time of the admin page in a process that issues tokens: ``python -m benchmarks.admin_page``.

Fills a real MongoDB with the statistics of 5,000 clients in 100,000 documents, and polls as the open page does.
"""

import time
from collections.abc import Mapping
from contextlib import closing
from random import Random
from typing import Any

from authlib.integrations.flask_oauth2 import AuthorizationServer
from flask import Flask
from flask.testing import FlaskClient

from benchmarks.subjects import silence_log
from oauth_ratelimit import Limiter, OAuthRateLimit, load_config
from oauth_ratelimit.admin import admin_blueprint
from oauth_ratelimit.admin.traffic import SPANS
from oauth_ratelimit.core.statistics import MINUTE_S, ClientMinute, Peak, Source, Tally, UserLoad
from oauth_ratelimit.store.mongo.client import Connection
from oauth_ratelimit.store.mongo.rollups import RollupStore
from oauth_ratelimit.store.mongo.statistics import StatisticsStore
from testbed.mongod import running_mongodb

CLIENTS, DOCUMENTS = 5000, 100_000
POLLS = 3
INTERVAL_S = 5.0  # of the page
OFTEN = "state,verdict"  # of many clients, charts and table are read twice a minute
ALL = f"{OFTEN},traffic,clients"
USERS, GRANT = Source("user", "password"), Source("client", "client_credentials")


def fill(uri: str, *, now_s: float, span_s: int) -> None:
    """Write the statistics of a span, evenly spread over its minutes."""
    random = Random(1)
    minutes = DOCUMENTS // CLIENTS
    with closing(Connection(uri, timeout_s=60.0)) as connection:
        store = StatisticsStore(connection)
        for number in range(minutes):
            minute_s = int((now_s - number * span_s / minutes) // MINUTE_S) * MINUTE_S
            clients = [
                ClientMinute(
                    f"client-{client:05d}",
                    minute_s,
                    {USERS: Tally(random.randrange(50), random.randrange(3)), GRANT: Tally(3)},
                    {"user": Peak(random.random(), 5.0, 10, 60), "client": Peak(random.random(), 3.0, 10, 60)},
                    (UserLoad("alice", 3), UserLoad("bob", 3)),
                    {7: 3, 8: 2},
                    seconds=[4, *[0] * 59],
                )
                for client in range(CLIENTS)
            ]
            store.put("process", clients, keep_s=1e7)
        list(RollupStore(connection).derive_due(now_s, keep_s=1e7))


def fill_counters(config: Mapping[str, Any]) -> None:
    """Count a request of each client."""
    with closing(Limiter(load_config(config))) as limiter:
        for client in range(CLIENTS):
            limiter.check(f"client-{client:05d}", "alice")
        limiter.sync()


def cost_of_poll(page: FlaskClient, names: str, span: str) -> tuple[float, bool]:
    """Return the seconds of processor time that parts of an open overview take, and True if all is read."""
    begun_s = time.thread_time()
    answer = page.get(f"/ratelimit/part/{names}?span={span}").text
    cost_s = time.thread_time() - begun_s
    if "problem" in answer:
        raise SystemExit(f"{names}: {answer}")
    return cost_s, "still being read" not in answer


def main() -> None:
    """Print milliseconds of processor time of the first poll and of later ones, for each span."""
    silence_log()
    with running_mongodb() as uri:
        fill(uri, now_s=time.time(), span_s=3600)
        config = {"store": {"uri": uri, "timeout": "30s"}, "limits": {"user": ["10/hour"]}}
        fill_counters(config)
        app = Flask("page")
        app.config["OAUTH_RATELIMIT_CONFIG"] = config
        OAuthRateLimit(app, AuthorizationServer(app))
        app.register_blueprint(admin_blueprint(lambda: "ann"))
        page = app.test_client()
        for span in SPANS:
            for number in range(POLLS):
                cost_s, is_complete = cost_of_poll(page, ALL, span)
                poll = "first" if number == 0 else "later" if is_complete else "still reading, later"
                print(f"{span}, {poll} poll: {cost_s * 1000:.0f} ms")
                time.sleep(INTERVAL_S)
                cost_s, _ = cost_of_poll(page, OFTEN, span)
                print(f"{span}, poll without what is kept for longer: {cost_s * 1000:.0f} ms")
                time.sleep(INTERVAL_S)


if __name__ == "__main__":
    main()
