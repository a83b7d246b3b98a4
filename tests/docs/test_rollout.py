"""The way back works when it is needed most."""

import socket
from pathlib import Path

import yaml

from testbed.clock import wait_until
from testbed.oauth_server.database import BATCH_JOBS
from tests.support.flows import post
from tests.support.sites import protected


def test_switched_off_while_mongodb_hangs(database: Path, tmp_path: Path) -> None:
    """
    ``mode: off`` in the file ends denials within seconds, with a MongoDB that takes connections and never answers.
    """
    config = tmp_path / "ratelimit.yaml"
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        uri = f"mongodb://127.0.0.1:{silent.getsockname()[1]}/oauth"
        settings = {"store": {"uri": uri, "timeout": 0.1}, "limits": {"client": ["3/hour"]}}
        config.write_text(yaml.safe_dump({"mode": "enforce", **settings}))
        with protected(database, str(config)) as site:

            def status() -> int:
                return post(f"{site.url}/token", BATCH_JOBS, {"grant_type": "client_credentials"}).status_code

            assert [200, 200, 200, 429] == [status() for _ in range(4)]
            config.write_text(yaml.safe_dump({"mode": "off", **settings}))
            wait_until(lambda: status() == 200, "the file is read")
