"""``python -m demo.serve``: one server of the demo, to send requests to and to reconfigure by hand.

Recorded traffic plays in the background, so that the admin page shows something; ``--no-traffic`` leaves it out.
"""

import argparse
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from demo.replay import BACKGROUND_SPEED, BackgroundTraffic
from oauth_ratelimit.errors import RateLimitError
from testbed.deployment import Deployment, Instance, deploy, exit_on_sigterm
from testbed.mongod_program import MongodUnavailable
from testbed.oauth_server.database import BATCH_JOBS, DEMO_CLIENTS, DEMO_USERS, WEB_SHOP

_POLL_S = 0.2
_WITH_TRAFFIC = f"""\
Recorded traffic plays in the background, {BACKGROUND_SPEED:g} times faster: tables fill at once, charts after a minute.
{BATCH_JOBS.client_id} and {WEB_SHOP.client_id} are not part of it. Without traffic: --no-traffic"""
_WITHOUT_TRAFFIC = "The page is empty until a client requests a token; charts start after a minute."


def main() -> int:
    """Serve until Ctrl-C or SIGTERM and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m demo.serve", description="Runs one server of the demo.")
    parser.add_argument("--no-traffic", action="store_true", help="replay no recorded traffic")
    is_quiet = parser.parse_args().no_traffic
    exit_on_sigterm()
    traffic = None if is_quiet else BackgroundTraffic(without=(BATCH_JOBS, WEB_SHOP))
    clients = {*DEMO_CLIENTS, *(traffic.clients if traffic else ())}
    users = {*DEMO_USERS, *(traffic.users if traffic else ())}
    try:
        with (
            deploy(instance_count=1, clients=clients, users=users) as deployment,
            ExitStack() as undo,
        ):
            _introduce(deployment, is_quiet=is_quiet)
            if traffic:
                undo.enter_context(traffic.start(deployment.instances[0]))
            _follow(deployment.instances[0])
    except KeyboardInterrupt:
        return 0
    except RateLimitError as exc:
        print(exc, file=sys.stderr)
        return 2 if isinstance(exc, MongodUnavailable) else 1
    return 1


def _introduce(deployment: Deployment, *, is_quiet: bool) -> None:
    url = deployment.instances[0].url
    machine = f"{BATCH_JOBS.client_id}:{BATCH_JOBS.client_secret}"
    app = f"{WEB_SHOP.client_id}:{WEB_SHOP.client_secret}"
    user = DEMO_USERS[0]
    flask = Path(sys.executable).with_name("flask")
    print(f"""\
The OAuth server of the demo listens on {url}
MongoDB {deployment.mongodb}

Request a token, for a client alone and for a user:
  curl -i -u {machine} -d grant_type=client_credentials {url}/token
  curl -i -u {app} -d grant_type=password -d username={user.username} -d password={user.password} {url}/token

The admin page: usage, clients near a limit, overrides (from this machine only):
  {url}/ratelimit/
{_WITHOUT_TRAFFIC if is_quiet else _WITH_TRAFFIC}

The command line:
  {flask} oauth-ratelimit --config {deployment.config_path} --mongo-uri {deployment.mongo_uri} status

The limits. The server applies a saved change within seconds (mode: dry-run denies nothing, mode: enforce does):
  {deployment.config_path}

The log follows. Ctrl-C stops the server and removes all its files.
""")


def _follow(instance: Instance) -> None:
    """Print the log of the server until it ends."""
    with instance.log_path.open(errors="replace") as log:
        while instance.exit_code is None:
            print(log.read(), end="", flush=True)
            time.sleep(_POLL_S)
        print(log.read(), end="", flush=True)


if __name__ == "__main__":
    sys.exit(main())
