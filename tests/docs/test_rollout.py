"""The way back works when it is needed most."""

import socket
from pathlib import Path

import yaml

from demo.database import BATCH_JOBS, seed
from demo.server import create_app
from tests.support.flows import post
from tests.support.helpers import wait_until
from tests.support.serving import serving


def test_switched_off_while_mongodb_hangs(tmp_path: Path) -> None:
    """
    ``mode: off`` in the file ends denials within seconds, with a MongoDB that takes connections and never answers.
    """
    database, config = tmp_path / "demo.sqlite3", tmp_path / "ratelimit.yaml"
    seed(database)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        uri = f"mongodb://127.0.0.1:{silent.getsockname()[1]}/oauth"
        settings = {"store": {"uri": uri, "timeout": 0.1}, "limits": {"client": ["3/hour"]}}
        config.write_text(yaml.safe_dump({"mode": "enforce", **settings}))
        app = create_app(database, config)
        with serving(app) as url:

            def status() -> int:
                return post(f"{url}/token", BATCH_JOBS, {"grant_type": "client_credentials"}).status_code

            assert [200, 200, 200, 429] == [status() for _ in range(4)]
            config.write_text(yaml.safe_dump({"mode": "off", **settings}))
            wait_until(lambda: status() == 200, "the file is read")
        app.extensions["oauth_ratelimit"].close()
