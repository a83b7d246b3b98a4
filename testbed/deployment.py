"""A deployment as the demo runs it: a MongoDB, a configuration file, clients and users, gunicorn servers."""

import json
import os
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from pymongo.collection import Collection
from pymongo.errors import PyMongoError

from oauth_ratelimit.errors import StoreRejected
from oauth_ratelimit.store.mongo.client import DEFAULT_DATABASE, connect
from testbed.gunicorn import Gunicorn, ServerFailed
from testbed.mongod import running_mongodb
from testbed.mongod_program import MONGO_URI_VARIABLE, MongodUnavailable
from testbed.oauth_server.database import seed
from testbed.oauth_server.models import Client, User

DRY_RUN = "mode: dry-run"
ENFORCE = "mode: enforce"
DENY = "name: client-burst}"
REUSE = "name: client-burst, on_limit: reuse}"

CONFIG = Path(__file__).with_name("deployment.yaml")
WOULD_DENY_HEADER = "Demo-Would-Deny"  # on answers that would have been denied under enforce
REUSE_HEADER = "Demo-Reuse"  # on tokens above a limit: ``reused`` or ``issued``
_RELOAD_TIMEOUT_S = 30.0
_TIMEOUT_S = 10.0
_POLL_S = 0.05


class Instance(Gunicorn):
    """One server of the demo: gunicorn with one worker of eight threads.

    Args:
        name: For messages.
        app: The WSGI application, ``module:name``.
        env: Added to our own environment.
    """

    def __init__(self, name: str, app: str, *, env: Mapping[str, str]) -> None:
        keep_alive = ["--keep-alive=60"]  # longer than any pause between requests, so that no connection is closed
        super().__init__(app, worker_class="gthread", threads=8, env=env, extra=keep_alive)
        self.name = name

    def events(self, name: str) -> Iterator[dict[str, Any]]:
        """Yield the logged events with a name."""
        for line in self.log.splitlines():
            if line.startswith("{") and f'"{name}"' in line:
                event = json.loads(line)
                if event["event"] == name:
                    yield event


@dataclass(frozen=True, slots=True)
class Deployment:
    """The running parts.

    Attributes:
        mongodb: Description of the MongoDB server.
        mongo_uri: Its address.
        instances: The servers, ready for requests.
        config_path: The configuration file of all servers.
        counters: The collection that they share.
    """

    mongodb: str
    mongo_uri: str
    instances: Sequence[Instance]
    config_path: Path
    counters: "Collection[dict[str, Any]]"

    def change(self, *changes: tuple[str, str]) -> float:
        """Replace texts in the file, and return the seconds until every server has applied it.

        Raises:
            ServerFailed: A server did not apply the change in time.
        """
        started_s = time.monotonic()
        reload_counts = [len(list(instance.events("config_reloaded"))) for instance in self.instances]
        text = self.config_path.read_text()
        for old, new in changes:
            text = text.replace(old, new, 1)
        self.config_path.write_text(text)
        for instance, count in zip(self.instances, reload_counts, strict=True):
            while len(list(instance.events("config_reloaded"))) == count:
                if time.monotonic() - started_s > _RELOAD_TIMEOUT_S:
                    raise ServerFailed(f"{instance.name} does not apply the change: {instance.log[-1500:]}")
                time.sleep(_POLL_S)
        return time.monotonic() - started_s

    def stop(self) -> None:
        """Stop all servers with SIGTERM: each finishes its requests and flushes its counters."""
        for instance in self.instances:
            instance.signal(signal.SIGTERM)
        for instance in self.instances:
            instance.stop()


@contextmanager
def deploy(
    *, instance_count: int, clients: Iterable[Client] = (), users: Iterable[User] = (), marks: bool = False
) -> Iterator[Deployment]:
    """Start everything, and stop and remove it afterwards.

    Args:
        instance_count: Number of servers.
        clients: The clients to register.
        users: The users to register.
        marks: Mark the answers that would have been denied under enforce, see ``testbed.oauth_server.wsgi``.

    Raises:
        MongodUnavailable: There is no MongoDB to use.
        ServerFailed: A server did not start.
    """
    with ExitStack() as undo:
        directory = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="oauth_ratelimit-demo-")))
        uri = undo.enter_context(running_mongodb())
        namespace = f"demo_{secrets.token_hex(4)}"  # a MongoDB from the environment may hold other collections
        counters = undo.enter_context(open_counters(uri, namespace))
        mongodb = _describe(counters)
        config_path = write_config(directory, namespace)
        database_path = directory / "database.sqlite"
        seed(database_path, clients=clients, users=users)
        env = {
            "DEMO_DATABASE": str(database_path),
            "DEMO_MARKS": "1" if marks else "",
            "DEMO_SECRET_KEY": secrets.token_hex(32),
            "OAUTH_RATELIMIT_CONFIG": str(config_path),
            "OAUTH_RATELIMIT_MODE": "",  # the demo ignores an emergency switch in the environment
            MONGO_URI_VARIABLE: uri,
        }
        instances = [
            Instance(f"server {number}", "testbed.oauth_server.wsgi:app", env=env)
            for number in range(1, instance_count + 1)
        ]
        for instance in instances:
            undo.enter_context(closing(instance)).start()
        for instance in instances:
            instance.wait_until_ready()
        yield Deployment(mongodb, uri, instances, config_path, counters)


@contextmanager
def open_counters(uri: str, namespace: str) -> Iterator["Collection[dict[str, Any]]"]:
    """Yield the collection of counters in a namespace, and drop all collections of the namespace afterwards.

    Raises:
        MongodUnavailable: The URI is malformed, or no server answers there.
    """
    try:
        connected = connect(uri, timeout_s=_TIMEOUT_S)
    except StoreRejected as exc:
        raise MongodUnavailable(f"in {MONGO_URI_VARIABLE}, {exc}") from exc
    with connected as client:
        try:
            client.admin.command("ping")
        except PyMongoError as exc:
            raise MongodUnavailable(f"the server in {MONGO_URI_VARIABLE} does not answer") from exc
        database = client.get_default_database(DEFAULT_DATABASE)
        try:
            yield database[f"{namespace}_ratelimits"]
        finally:
            for name in database.list_collection_names(filter={"name": {"$regex": f"^{namespace}_"}}):
                database.drop_collection(name)


def write_config(directory: Path, namespace: str) -> Path:
    """Copy the demo's configuration, with a namespace of its own."""
    path = directory / "demo.yaml"
    path.write_text(CONFIG.read_text().replace("namespace: demo", f"namespace: {namespace}", 1))
    return path


def exit_on_sigterm() -> None:
    """Have SIGTERM leave through every ``with``, so that servers are stopped and files removed."""
    signal.signal(signal.SIGTERM, _exit)


def _exit(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _describe(counters: "Collection[dict[str, Any]]") -> str:
    """Return version and address of the MongoDB server, without a URI from the environment: it may hold a password."""
    version = counters.database.client.server_info()["version"]
    if os.environ.get(MONGO_URI_VARIABLE):
        return f"{version}, from {MONGO_URI_VARIABLE}"
    host, port = counters.database.client.address or ("", 0)
    return f"{version} on {host}:{port}, started for this demo"
