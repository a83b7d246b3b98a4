"""``python -m demo.serve``: one of the demo's servers, to send requests to and to reconfigure by hand.

Recorded traffic is played to it, so that its page has something to show; ``--no-traffic`` leaves that to you.
"""

import argparse
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from demo.instance import Instance
from demo.seeds import BATCH_JOBS, DEMO_CLIENTS, DEMO_USERS, WEB_SHOP
from demo.stage import Stage, end_on_sigterm, set_stage
from demo.traffic import SPEED, Traffic
from oauth_ratelimit.errors import RateLimitError
from tests.support.mongod_program import MongodUnavailable

_POLL_S = 0.2
_LIVELY = f"""\
Recorded traffic plays in the background, {SPEED:g} times faster: tables fill at once, charts after a minute.
Neither {BATCH_JOBS.client_id} nor {WEB_SHOP.client_id} is part of it; --no-traffic leaves it out."""
_EMPTY = "It is empty until somebody asks for a token; charts begin after a minute."


def main() -> int:
    """Serve until Ctrl-C or SIGTERM and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m demo.serve", description="Serves the demo.")
    parser.add_argument("--no-traffic", action="store_true", help="play no recorded traffic")
    is_quiet = parser.parse_args().no_traffic
    end_on_sigterm()
    traffic = None if is_quiet else Traffic(without=(BATCH_JOBS, WEB_SHOP))
    clients = {*DEMO_CLIENTS, *(traffic.clients if traffic else ())}
    users = {*DEMO_USERS, *(traffic.users if traffic else ())}
    try:
        with (
            set_stage("demo.wsgi:app", instance_count=1, clients=clients, users=users) as stage,
            ExitStack() as undo,
        ):
            _introduce(stage, is_quiet=is_quiet)
            if traffic:
                undo.enter_context(traffic.start(stage.instances[0]))
            _follow(stage.instances[0])
    except KeyboardInterrupt:
        return 0
    except RateLimitError as exc:
        print(exc, file=sys.stderr)
        return 2 if isinstance(exc, MongodUnavailable) else 1
    return 1


def _introduce(stage: Stage, *, is_quiet: bool) -> None:
    url = f"http://{stage.instances[0].address}"
    machine = f"{BATCH_JOBS.client_id}:{BATCH_JOBS.client_secret}"
    app = f"{WEB_SHOP.client_id}:{WEB_SHOP.client_secret}"
    user = DEMO_USERS[0]
    flask = Path(sys.executable).with_name("flask")
    print(f"""\
The demo's OAuth server listens on {url}
MongoDB {stage.mongodb}

A token for a machine, and one for a user:
  curl -i -u {machine} -d grant_type=client_credentials {url}/token
  curl -i -u {app} -d grant_type=password -d username={user.username} -d password={user.password} {url}/token

Who asks for how many, who is near a limit, overrides (open to this machine only):
  {url}/ratelimit/
{_EMPTY if is_quiet else _LIVELY}

The command line:
  {flask} oauth-ratelimit --config {stage.config_path} --mongo-uri {stage.mongo_uri} status

Its limits, taken over when you save them (mode: dry-run denies nobody, mode: enforce does):
  {stage.config_path}

Its log follows. Ctrl-C stops it and removes everything.
""")


def _follow(instance: Instance) -> None:
    """Print what the server logs, until it ends."""
    with instance.log_path.open(errors="replace") as log:
        while instance.exit_code is None:
            print(log.read(), end="", flush=True)
            time.sleep(_POLL_S)
        print(log.read(), end="", flush=True)


if __name__ == "__main__":
    sys.exit(main())
