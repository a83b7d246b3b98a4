"""A MongoDB that asks for TLS."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from oauth_ratelimit import Limiter, StoreUnavailable, load_config
from oauth_ratelimit.core.key import Key
from oauth_ratelimit.store.mongo.counters import MongoStore
from tests.support.certificates import Authority
from tests.support.helpers import Clock, wait_until
from tests.support.limiters import stored_hits
from tests.support.mongod import Mongod
from tests.support.stores import mongo_store

HERE = "127.0.0.1"

pytestmark = pytest.mark.mongo


class Secured:
    """A server with certificates, on one port whatever it presents."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder, "authority")
        self.stranger = Authority(folder, "stranger")
        self._presented = folder / "presented.pem"
        self._folder = folder
        self._trusted = folder / "trusted.pem"
        self._trusted.write_bytes(self.authority.path.read_bytes())
        self.mongod = Mongod(
            [
                "--tlsMode=requireTLS",
                f"--tlsCertificateKeyFile={self._presented}",
                f"--tlsCAFile={self._trusted}",
                "--tlsAllowConnectionsWithoutCertificates",
            ]
        )
        self.present(self.authority)

    def present(self, authority: Authority) -> None:
        """Start anew with a certificate of an authority."""
        self.mongod.stop()
        self._presented.write_bytes(authority.issue("server", address=HERE).read_bytes())
        self._trusted.write_bytes(authority.path.read_bytes())  # a server checks its own certificate, too
        self.mongod.start()

    def uri(self, options: str) -> str:
        """Return the connection string with options."""
        return uri_of(self.mongod, options)


def uri_of(mongod: Mongod, options: str) -> str:
    """
    Return a connection string that leaves a busy machine the time for a handshake; a selection ends soon all the same.
    """
    patience = "connectTimeoutMS=60000&socketTimeoutMS=60000"
    return f"mongodb://{mongod.address}/oauth?{patience}{options and '&'}{options}"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A server of these tests' own."""
    server = Secured(tmp_path_factory.mktemp("tls"))
    yield server
    server.mongod.close()


@contextmanager
def a_limiter(uri: str, clock: Clock, store: MongoStore | None = None) -> Iterator[Limiter]:
    """A limiter that shares its counters there, closed at the end whatever becomes of the test."""
    settings = {"store": {"uri": uri, "timeout": "100ms"}, "limits": {"client": ["5/hour"]}, "mode": "enforce"}
    limiter = Limiter(load_config(settings), store, clock=clock)
    try:
        yield limiter
    finally:
        limiter.close()


def failure_of(store: MongoStore) -> str:
    """Return why a store cannot be read."""
    with pytest.raises(StoreUnavailable) as caught:
        store.read([Key("app", None)])
    return str(caught.value)


def test_counters_are_shared_through_tls(secured: Secured, clock: Clock) -> None:
    """The options of the connection string reach the driver."""
    with a_limiter(secured.uri(f"tls=true&tlsCAFile={secured.authority.path}"), clock) as limiter:
        limiter.check("app")

        report = wait_until(lambda: (tried := limiter.sync()).error is None and tried, "a connection")
    assert 1 == report.flushed_count


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ("tls=true&tlsCAFile={stranger}", "name the authority's file as tlsCAFile"),
        ("", "the connection string needs tls=true"),
    ],
)
def test_wrong_tls_options_are_logged_with_advice(secured: Secured, clock: Clock, options: str, advice: str) -> None:
    """Requests are decided meanwhile, and no hit is lost."""
    uri = secured.uri(options.format(stranger=secured.stranger.path))
    store = mongo_store(uri, timeout_s=0.1)
    wait_until(lambda: advice in failure_of(store), "the driver has tried")
    with capture_logs() as logs, a_limiter(uri, clock, store) as limiter:
        decisions = [limiter.check("app").allowed for _ in range(6)]
        limiter.sync()
        counts = limiter.counts("app")

    assert [True] * 5 + [False] == decisions
    assert 5 == counts.in_flight_hits
    failures = [entry["error"] for entry in logs if entry["event"] == "flush_failed"]
    assert [True] == [advice in failure for failure in failures]


def test_server_of_another_authority_gets_no_hits(secured: Secured, clock: Clock) -> None:
    """All are sent when it presents the right certificate."""
    secured.present(secured.stranger)
    uri = secured.uri(f"tls=true&tlsCAFile={secured.authority.path}")
    with capture_logs() as logs, a_limiter(uri, clock) as limiter:
        for _ in range(3):
            limiter.check("late")
        wait_until(lambda: "name the authority's file as tlsCAFile" in str(limiter.sync().error), "the advice")
        secured.present(secured.authority)
        wait_until(lambda: limiter.sync().error is None, "the right certificate")

    store = mongo_store(uri)
    assert 3 == stored_hits(store, Key("late", None))
    store.close()
    assert ["flush_failed", "flush_recovered"] == [entry["event"] for entry in logs]


def test_certificate_for_another_host_is_refused(secured: Secured, clock: Clock) -> None:
    uri = secured.uri(f"tls=true&tlsCAFile={secured.authority.path}").replace(HERE, "localhost")
    with capture_logs(), a_limiter(uri, clock) as limiter:
        limiter.check("app")
        wait_until(lambda: "is for another host" in str(limiter.sync().error), "the advice")
        assert 1 == limiter.counts("app").in_flight_hits


def test_server_without_tls_gets_no_hits(clock: Clock, mongod: Mongod) -> None:
    with capture_logs(), a_limiter(uri_of(mongod, "tls=true"), clock) as limiter:
        limiter.check("app")
        wait_until(lambda: "check that the server speaks TLS" in str(limiter.sync().error), "the advice")
        assert 1 == limiter.counts("app").in_flight_hits
