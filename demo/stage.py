"""What the demo needs around it: a MongoDB, a configuration file, clients and users, servers."""

import os
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from types import FrameType
from typing import Any

from pymongo.collection import Collection

from demo.audit import counters_in
from demo.instance import Instance, InstanceFailed
from demo.records import Client, User
from demo.seeds import seed
from tests.support.mongod import running_mongodb
from tests.support.mongod_program import MONGO_URI_VARIABLE

DRY_RUN = "mode: dry-run"
ENFORCE = "mode: enforce"

_CONFIG = "demo.yaml"
_TAKE_OVER_TIMEOUT_S = 30.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Stage:
    """Everything that runs.

    Attributes:
        mongodb: Which MongoDB it is, in words.
        mongo_uri: Its address.
        instances: The servers, ready.
        config_path: The file that they all watch.
        counters: The collection that they all share.
    """

    mongodb: str
    mongo_uri: str
    instances: Sequence[Instance]
    config_path: Path
    counters: "Collection[dict[str, Any]]"

    def enforce(self) -> float:
        """Change the mode in the file, and return after how many seconds every server has taken it over.

        Raises:
            InstanceFailed: One did not.
        """
        started_s = time.monotonic()
        text = self.config_path.read_text()
        self.config_path.write_text(text.replace(DRY_RUN, ENFORCE, 1))
        for instance in self.instances:
            while not any(event["new"] == "enforce" for event in instance.events("mode_changed")):
                if time.monotonic() - started_s > _TAKE_OVER_TIMEOUT_S:
                    raise InstanceFailed(f"{instance.name} does not notice the change: {instance.log[-1500:]}")
                time.sleep(_POLL_S)
        return time.monotonic() - started_s


def end_on_sigterm() -> None:
    """Have SIGTERM leave through every ``with``, so that servers and files go, too."""
    signal.signal(signal.SIGTERM, _end)


def _end(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


@contextmanager
def set_stage(
    app: str, *, instance_count: int, clients: Iterable[Client] = (), users: Iterable[User] = ()
) -> Iterator[Stage]:
    """Start everything, and stop and remove it afterwards.

    Args:
        app: The WSGI application of the servers, ``module:name``.
        instance_count: How many servers.
        clients: Registered with all of them.
        users: The same.

    Raises:
        MongodUnavailable: There is none that can be used.
        InstanceFailed: A server did not start.
    """
    with ExitStack() as undo:
        directory = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="oauth_ratelimit-demo-")))
        uri = undo.enter_context(running_mongodb())
        namespace = f"demo_{secrets.token_hex(4)}"  # a MongoDB from the environment may hold other things
        counters = undo.enter_context(counters_in(uri, namespace))
        mongodb = _describe(counters)
        config_path = write_config(directory, namespace)
        database_path = directory / "accounts.sqlite"
        seed(database_path, clients=clients, users=users)
        env = _environment(uri, config_path=config_path, database_path=database_path)
        instances = [
            undo.enter_context(Instance(f"server {number}", app, directory=directory, env=env))
            for number in range(1, instance_count + 1)
        ]
        for instance in instances:
            instance.wait_until_ready()
        yield Stage(mongodb, uri, instances, config_path, counters)


def write_config(directory: Path, namespace: str) -> Path:
    """Copy the demo's configuration, with collections of its own."""
    template = files("demo").joinpath(_CONFIG).read_text()
    path = directory / _CONFIG
    path.write_text(template.replace("namespace: demo", f"namespace: {namespace}", 1))
    return path


def _environment(uri: str, *, config_path: Path, database_path: Path) -> Mapping[str, str]:
    return {
        "DEMO_DATABASE": str(database_path),
        "DEMO_SECRET_KEY": secrets.token_hex(32),
        "OAUTH_RATELIMIT_CONFIG": str(config_path),
        "OAUTH_RATELIMIT_MODE": "",  # somebody's emergency switch is not for the demo
        MONGO_URI_VARIABLE: uri,
    }


def _describe(counters: "Collection[dict[str, Any]]") -> str:
    """Return which MongoDB it is. Without its URI, if that was given: it may hold a password."""
    version = counters.database.client.server_info()["version"]
    if os.environ.get(MONGO_URI_VARIABLE):
        return f"{version}, the one that {MONGO_URI_VARIABLE} names"
    host, port = counters.database.client.address or ("", 0)
    return f"{version} on {host}:{port}, started for this demo"
