"""A MongoDB that asks for TLS."""

from collections.abc import Iterator
from contextlib import closing

import pytest
from structlog.testing import capture_logs

from oauth_ratelimit import Limiter, StoreUnavailable
from oauth_ratelimit.core.key import Key
from oauth_ratelimit.store.mongo.counters import MongoStore
from testbed.clock import Clock, wait_until
from testbed.mongod import Mongod
from tests.support.certificates import Authority
from tests.support.limiters import in_flight_hits, limiter_of
from tests.support.stores import mongo_store

HERE = "127.0.0.1"

pytestmark = pytest.mark.mongo


def uri_of(mongod: Mongod, options: str) -> str:
    """Return a connection string that leaves a busy machine the time for a handshake."""
    patience = "connectTimeoutMS=60000&socketTimeoutMS=60000"
    return f"mongodb://{mongod.address}/oauth?{patience}{options and '&'}{options}"


@pytest.fixture(scope="module")
def authorities(tmp_path_factory: pytest.TempPathFactory) -> tuple[Authority, Authority]:
    """The authority of the server's certificate, and another one."""
    folder = tmp_path_factory.mktemp("tls")
    return Authority(folder, "authority"), Authority(folder, "stranger")


@pytest.fixture(scope="module")
def secured(authorities: tuple[Authority, Authority]) -> Iterator[Mongod]:
    authority, _ = authorities
    options = (
        "--tlsMode=requireTLS",
        f"--tlsCertificateKeyFile={authority.issue('server', address=HERE)}",
        f"--tlsCAFile={authority.path}",  # a server checks its own certificate, too
        "--tlsAllowConnectionsWithoutCertificates",
    )
    with Mongod(options) as mongod:
        yield mongod


def sharing(uri: str, clock: Clock, store: MongoStore | None = None) -> closing[Limiter]:
    """Return a limiter that shares its counters there, closed at the end whatever becomes of the test."""
    config = {"store": {"uri": uri, "timeout": "100ms"}, "limits": {"client": ["5/hour"]}}
    return closing(limiter_of(config, store, clock=clock))


def failure_of(store: MongoStore) -> str:
    with pytest.raises(StoreUnavailable) as caught:
        store.read([Key("app", None)])
    return str(caught.value)


@pytest.mark.parametrize(
    ("options", "host", "advice"),
    [
        ("tls=true&tlsCAFile={stranger}", HERE, "name the authority's file as tlsCAFile"),
        ("", HERE, "the connection string needs tls=true"),
        ("tls=true&tlsCAFile={authority}", "localhost", "is for another host"),
    ],
)
def test_wrong_tls_options_are_logged_with_advice(
    secured: Mongod,
    authorities: tuple[Authority, Authority],
    clock: Clock,
    options: str,
    host: str,
    advice: str,
) -> None:
    """Requests are decided meanwhile, and no hit is lost."""
    authority, stranger = authorities
    files = {"stranger": stranger.path, "authority": authority.path}
    uri = uri_of(secured, options.format(**files)).replace(HERE, host)
    store = mongo_store(uri, timeout_s=0.1)
    wait_until(lambda: advice in failure_of(store), "the driver has tried")
    with capture_logs() as logs, sharing(uri, clock, store) as limiter:
        decisions = [limiter.check("app").allowed for _ in range(6)]
        limiter.sync()
        in_flight = in_flight_hits(limiter)

    assert [True] * 5 + [False] == decisions
    assert 5 == in_flight
    failures = [entry["error"] for entry in logs if entry["event"] == "flush_failed"]
    assert [True] == [advice in failure for failure in failures]


def test_server_without_tls_gets_no_hits(clock: Clock, mongod: Mongod) -> None:
    with capture_logs(), sharing(uri_of(mongod, "tls=true"), clock) as limiter:
        limiter.check("app")
        wait_until(lambda: "check that the server speaks TLS" in str(limiter.sync().error), "the advice")
        assert 1 == in_flight_hits(limiter)
