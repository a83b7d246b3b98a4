"""A MongoDB that asks for TLS."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from oauth_ratelimit import Limiter, StoreUnavailable
from oauth_ratelimit.core.key import Key
from oauth_ratelimit.store.mongo.counters import MongoStore
from testbed.clock import Clock, wait_until
from testbed.mongod import Mongod
from tests.support.certificates import Authority
from tests.support.limiters import in_flight_hits, limiter_of, stored_hits
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
        return uri_of(self.mongod, options)


def uri_of(mongod: Mongod, options: str) -> str:
    """
    Return a connection string that leaves a busy machine the time for a handshake; a selection ends soon all the same.
    """
    patience = "connectTimeoutMS=60000&socketTimeoutMS=60000"
    return f"mongodb://{mongod.address}/oauth?{patience}{options and '&'}{options}"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    server = Secured(tmp_path_factory.mktemp("tls"))
    yield server
    server.mongod.close()


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
    secured: Secured, clock: Clock, options: str, host: str, advice: str
) -> None:
    """Requests are decided meanwhile, and no hit is lost."""
    files = {"stranger": secured.stranger.path, "authority": secured.authority.path}
    uri = secured.uri(options.format(**files)).replace(HERE, host)
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


def test_server_of_another_authority_gets_no_hits(secured: Secured, clock: Clock) -> None:
    """All are sent when it presents the right certificate."""
    secured.present(secured.stranger)
    uri = secured.uri(f"tls=true&tlsCAFile={secured.authority.path}")
    with capture_logs() as logs, sharing(uri, clock) as limiter:
        for _ in range(3):
            limiter.check("late")
        wait_until(lambda: "name the authority's file as tlsCAFile" in str(limiter.sync().error), "the advice")
        secured.present(secured.authority)
        wait_until(lambda: limiter.sync().error is None, "the right certificate")

    store = mongo_store(uri)
    assert 3 == stored_hits(store, Key("late", None))
    store.close()
    assert ["flush_failed", "flush_recovered"] == [entry["event"] for entry in logs]


def test_server_without_tls_gets_no_hits(clock: Clock, mongod: Mongod) -> None:
    with capture_logs(), sharing(uri_of(mongod, "tls=true"), clock) as limiter:
        limiter.check("app")
        wait_until(lambda: "check that the server speaks TLS" in str(limiter.sync().error), "the advice")
        assert 1 == in_flight_hits(limiter)
