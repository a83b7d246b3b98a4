"""Pictures of the admin page for ``docs/images``: ``python -m tests.admin.screenshots``.

A limiter whose clock runs through the last hours decides the requests of the recorded trace, so that the charts have
something to show. Then some requests are sent to real servers.
"""

import base64
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import cache
from pathlib import Path

import requests

from demo.database import DEMO_USERS
from demo.deployment import Deployment, Instance, deploy
from demo.trace import APPS, LATECOMER, MACHINES, Caller, assign, hits
from oauth_ratelimit import Limiter, load_config
from oauth_ratelimit.observe.statistics import StatisticsRecorder
from oauth_ratelimit.store.memory import MemoryStore
from oauth_ratelimit.store.mongo.client import Connection
from oauth_ratelimit.store.mongo.statistics import StatisticsStore
from tests.admin.browser import Browser, open_browser
from tests.support.helpers import Clock, wait_until

IMAGES = Path(__file__).parents[2] / "docs" / "images"
SPEED = 2.2  # thirteen hours of the trace in six
END_RATIO = 0.888  # of the trace: within a burst, so that there is a verdict
HOSTS_OF = dict(zip(MACHINES, (14, 4, 6, 8, 10), strict=True))
LIVE_REQUESTS = 260
MAX_BYTES = 150_000
WINDOW = (1160, 900)
CHARTS_FIT = """
return [...document.querySelectorAll(".plot .uplot")].every((plot) => {
  const [drawn, room] = [plot, plot.closest(".plot")].map((element) => element.clientWidth);
  return room - 40 < drawn && drawn <= room;
});
"""

CONFIG = {
    "limit: 40, window: 5s, name: client-burst": "limit: 20, window: 1m, name: client",
    "limit: 20, window: 5s, name: user-burst": "limit: 40, window: 1m, name: user",
    "trusted_clients:": "clients:\n  report-export: {mode: enforce}\n\ntrusted_clients:",
}


def main() -> int:
    """Take all pictures and return the exit status: 1 if one is too large for the repository."""
    IMAGES.mkdir(exist_ok=True)
    clients = [*APPS, *(caller.client for caller in (*MACHINES, LATECOMER))]
    users = {*DEMO_USERS, *(caller.user for _, caller in recorded() if caller.user)}
    with deploy(instance_count=2, clients=clients, users=users) as deployment:
        text = deployment.config_path.read_text()
        for old, new in CONFIG.items():
            text = text.replace(old, new, 1)
        deployment.config_path.write_text(text)
        record_trace(deployment)
        send_requests(deployment.instances)
        with open_browser() as browser:
            too_large = [path.name for path in take_all(browser, deployment) if path.stat().st_size > MAX_BYTES]
    sys.stdout.writelines(f"{name} is too large\n" for name in too_large)
    return 1 if too_large else 0


@cache
def recorded() -> Sequence[tuple[float, Caller]]:
    """Return the time and the caller of each recorded request. The busiest hosts stand for machine clients."""
    trace = list(hits())
    cast = assign(trace)
    ranked = [host for host, _ in Counter(hit.host for hit in trace).most_common()]
    for machine, host_count in HOSTS_OF.items():
        cast |= dict.fromkeys(ranked[:host_count], machine)
        ranked = ranked[host_count:]
    end_s = trace[0].at_s + (trace[-1].at_s - trace[0].at_s) * END_RATIO
    return [(hit.at_s, cast[hit.host]) for hit in trace if hit.at_s <= end_s]


def record_trace(deployment: Deployment) -> None:
    """Write statistics of the trace as if it had happened in the last hours."""
    settings = load_config(deployment.config_path)
    calls = recorded()
    clock = Clock()
    limiter = Limiter(settings, MemoryStore(), clock=clock)
    host, port = deployment.counters.database.client.address or ("", 0)
    uri = f"mongodb://{host}:{port}/{deployment.counters.database.name}"
    with closing(Connection(uri, namespace=settings.store.namespace)) as connection:
        recorder = StatisticsRecorder(StatisticsStore(connection), settings=lambda: settings.statistics, clock=clock)
        start_s = time.time() - 90 - (calls[-1][0] - calls[0][0]) / SPEED
        for at_s, caller in calls:
            clock.now_s = start_s + (at_s - calls[0][0]) / SPEED
            client_id, username = caller.key
            recorder.count(
                limiter.check(client_id, username),
                client_id,
                username=username,
                grant=caller.grant_type,
                now_s=clock(),
            )
            recorder.run()
        recorder.close()
    limiter.close()


def send_requests(servers: Sequence[Instance]) -> None:
    """Send some requests to the servers, so that there is current usage."""
    with requests.Session() as session:
        for number, (_, caller) in zip(range(LIVE_REQUESTS), recorded(), strict=False):
            caller = MACHINES[1] if number % 5 == 0 else MACHINES[2] if number % 9 == 0 else caller
            form = {"grant_type": caller.grant_type}
            if caller.user:
                form |= {"username": caller.user.username, "password": caller.user.password}
            url = f"http://{servers[number % len(servers)].address}/token"
            session.post(url, data=form, auth=(caller.client_id, caller.client.client_secret), timeout=10)


def take_all(browser: Browser, deployment: Deployment) -> Iterator[Path]:
    """Take all pictures."""
    url = f"http://{deployment.instances[0].address}/ratelimit/"
    browser.resize(WINDOW)
    browser.open(f"{url}?span=6h")
    browser.wait_for("batch-jobs", "#clients")
    browser.wait_for("batch-jobs", "#top")
    browser.wait_for("all others", "#allowed .legend")
    yield take(browser, "admin-overview", height=830)
    browser.resize(WINDOW, is_dark=True)
    browser.open(f"{url}what-if")
    browser.wait_for("With", "#result-title")
    browser.fill("#limit", "12")
    browser.wait_for("With 12 per minute", "#result-title")
    yield take(browser, "admin-what-if-dark", height=900, is_dark=True)


def take(browser: Browser, name: str, *, height: int, is_dark: bool = False) -> Path:
    """Store a picture of the window."""
    browser.resize((WINDOW[0], height), is_dark=is_dark)
    wait_until(lambda: browser.run(CHARTS_FIT), "the charts follow the size of the window")
    shot = browser.driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png", "optimizeForSpeed": False})
    path = IMAGES / f"{name}.png"
    path.write_bytes(base64.b64decode(shot["data"]))
    sys.stdout.write(f"{path.name} {path.stat().st_size / 1000:.0f} kB\n")
    return path


if __name__ == "__main__":
    sys.exit(main())
