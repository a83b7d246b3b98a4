"""
``python -m oauth_ratelimit.demo.serve``: one of the demo's servers, to send requests to and to reconfigure by hand.
"""

import sys
import time
from pathlib import Path

from oauth_ratelimit.demo.instance import Instance
from oauth_ratelimit.demo.mongod_program import MongodUnavailable
from oauth_ratelimit.demo.seeds import BATCH_JOBS, DEMO_CLIENTS, DEMO_USERS, WEB_SHOP
from oauth_ratelimit.demo.stage import Stage, set_stage
from oauth_ratelimit.errors import RateLimitError

_POLL_S = 0.2


def main() -> int:
    """
    Serve until Ctrl-C and return the exit status.
    """
    try:
        with set_stage(
            "oauth_ratelimit.demo.wsgi:app", instance_count=1, clients=DEMO_CLIENTS, users=DEMO_USERS
        ) as stage:
            _introduce(stage)
            _follow(stage.instances[0])
    except KeyboardInterrupt:
        return 0
    except RateLimitError as exc:
        print(exc, file=sys.stderr)
        return 2 if isinstance(exc, MongodUnavailable) else 1
    return 1


def _introduce(stage: Stage) -> None:
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

The command line:
  {flask} oauth-ratelimit --config {stage.config_path} --mongo-uri {stage.mongo_uri} status

Its limits, taken over when you save them (mode: dry-run denies nobody, mode: enforce does):
  {stage.config_path}

Its log follows. Ctrl-C stops it and removes everything.
""")


def _follow(instance: Instance) -> None:
    """
    Print what the server logs, until it ends.
    """
    with instance.log_path.open(errors="replace") as log:
        while instance.exit_code is None:
            print(log.read(), end="", flush=True)
            time.sleep(_POLL_S)
        print(log.read(), end="", flush=True)


if __name__ == "__main__":
    sys.exit(main())
