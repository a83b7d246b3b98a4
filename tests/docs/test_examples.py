"""The examples do what they say, as far as that can be tried here; each one's README says how far that is."""

import contextlib
import json
import os
import re
import shutil
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import jsonschema
import kubernetes_validate
import pytest
import requests
import yaml
from flask import Response, request

from oauth_ratelimit import load_config
from testbed.child import Child
from testbed.clock import Clock, wait_until
from testbed.mongod import free_port
from testbed.oauth_server.database import BATCH_JOBS
from tests.docs.blocks import ROOT, the_block
from tests.support.flows import post
from tests.support.helpers import is_open
from tests.support.sites import Site, protected

EXAMPLES = ROOT / "examples"
TIMEOUT_S = 60
CREDENTIALS = (BATCH_JOBS.client_id, str(BATCH_JOBS.client_secret))


@contextlib.contextmanager
def gunicorn(place: Path, environment: dict[str, str]) -> Iterator[str]:
    """Serve the application of the example with the gunicorn file of the other one."""
    shutil.copytree(EXAMPLES / "app_factory", place, dirs_exist_ok=True)
    port = free_port()
    server = Child(
        [sys.executable, "-m", "gunicorn", f"--config={EXAMPLES / 'gunicorn_systemd' / 'gunicorn.conf.py'}"],
        cwd=place,
        env={**os.environ, "MYAUTH_BIND": f"127.0.0.1:{port}", **environment, "PYTHONPATH": str(ROOT)},
        log_path=place / "server.log",
    )
    try:
        wait_until(lambda: is_open(port) or server.exit_code is not None, "gunicorn listens", TIMEOUT_S)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.stop(timeout_s=TIMEOUT_S)


def test_workers_of_the_app_factory_deny_together(tmp_path: Path, mongo_uri: str) -> None:
    environment = {
        "FLASK_OAUTH_RATELIMIT_CONFIG": "ratelimit.yaml",
        "FLASK_OAUTH_RATELIMIT_MONGO_URI": mongo_uri,
        "MYAUTH_WORKERS": "2",
    }
    with gunicorn(tmp_path, environment) as url:

        def status(client: str) -> int:
            form = {"grant_type": "client_credentials"}
            auth = (client, f"{client.partition('-')[0]}-secret")
            return requests.post(f"{url}/token", data=form, auth=auth, timeout=TIMEOUT_S).status_code

        assert {200} == {status("monitoring") for _ in range(15)}
        assert 200 == status("batch-jobs")
        wait_until(lambda: [status("batch-jobs") for _ in range(6)] == [429] * 6, "both workers deny", TIMEOUT_S)
        assert 401 == status("reports-wrong")
        assert 200 == requests.get(f"{url}/health", timeout=TIMEOUT_S).status_code
    assert "Traceback" not in (tmp_path / "server.log").read_text()


@pytest.fixture
def client_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The example's modules, importable as their README has it, and forgotten afterwards."""
    monkeypatch.syspath_prepend(EXAMPLES / "client")
    monkeypatch.setenv("OAUTHLIB_INSECURE_TRANSPORT", "1")  # the library insists on TLS otherwise
    yield
    for name in ("token_source", "oauthlib_session"):
        sys.modules.pop(name, None)


@pytest.fixture
def site(database: Path, clock: Clock) -> Iterator[Site]:
    """The demo's server with two tokens a minute, which counts the requests for each path."""
    settings = {"mode": "enforce", "limits": {"client": ["2/minute"]}}
    with protected(database, settings, clock=clock) as site:
        site.app.extensions["seen"] = seen = Counter()

        @site.app.before_request
        def count() -> None:
            seen[request.path] += 1

        @site.app.get("/api")
        def api() -> Response:
            return Response(request.headers["Authorization"])

        yield site


@pytest.fixture
def sleep(clock: Clock) -> Mock:
    return Mock(side_effect=clock.advance)


def test_one_token_for_many_calls(site: Site, client_modules: None) -> None:
    """A hundred calls cost one token, and a naive client 98 denials. A new one is taken before it expires."""
    from token_source import TokenSource

    seen = site.app.extensions["seen"]
    form = {"grant_type": "client_credentials"}
    naive = Counter(post(f"{site.url}/token", BATCH_JOBS, form).status_code for _ in range(100))
    assert {200: 2, 429: 98} == naive
    site.clock.advance(120)
    seen.clear()
    with requests.Session() as session:
        session.auth = TokenSource(f"{site.url}/token", *CREDENTIALS, clock=site.clock, sleep=site.clock.advance)
        first = {session.get(f"{site.url}/api", timeout=TIMEOUT_S).text for _ in range(100)}
        assert (1, 1) == (len(first), seen["/token"])
        site.clock.advance(864_000)
        assert session.get(f"{site.url}/api", timeout=TIMEOUT_S).text not in first
    assert 2 == seen["/token"]


def test_denied_client_waits_once_and_has_its_token(site: Site, sleep: Mock, client_modules: None) -> None:
    from token_source import TokenDenied, TokenSource

    url = f"{site.url}/token"
    tokens = [TokenSource(url, *CREDENTIALS, clock=site.clock, sleep=sleep).token() for _ in range(3)]
    assert 3 == len(set(tokens))
    sleep.assert_called_once()
    assert 1 <= sleep.call_args.args[0] <= 66 * 1.1  # the window, the frame in which it began, and a tenth
    with pytest.raises(TokenDenied, match="401"):
        TokenSource(url, BATCH_JOBS.client_id, "wrong", sleep=sleep).token()
    assert 5 == site.app.extensions["seen"]["/token"]


def use_up(site: Site) -> None:
    form = {"grant_type": "client_credentials"}
    assert [200, 200, 429] == [post(f"{site.url}/token", BATCH_JOBS, form).status_code for _ in range(3)]
    site.app.extensions["seen"].clear()


@pytest.mark.parametrize("with_oauthlib", [False, True], ids=["requests", "requests-oauthlib"])
@pytest.mark.parametrize("wait_s", [0.0, 300.0], ids=["do not wait", "wait"])
def test_twenty_threads_of_a_denied_client_ask_once(
    site: Site, client_modules: None, wait_s: float, with_oauthlib: bool
) -> None:
    """All have the denial at once, or wait until Retry-After, and one of them asks again."""
    from oauthlib_session import PatientSession
    from token_source import TokenDenied, TokenSource

    use_up(site)
    begun_s, waited = site.clock(), threading.Barrier(20)

    def sleep(length_s: float) -> None:
        waited.wait(TIMEOUT_S)
        with lock:
            site.clock.now_s = max(site.clock.now_s, begun_s + length_s)

    lock = threading.Lock()
    tokens = TokenSource(f"{site.url}/token", *CREDENTIALS, wait_s=wait_s, clock=site.clock, sleep=sleep)

    def call(_: int) -> str | float:
        session: requests.Session = PatientSession(tokens, CREDENTIALS[0]) if with_oauthlib else requests.Session()
        session.auth = None if with_oauthlib else tokens
        try:
            with session:
                return session.get(f"{site.url}/api", timeout=TIMEOUT_S).text
        except TokenDenied as denial:
            return denial.retry_at_s

    with ThreadPoolExecutor(20) as pool:
        found = set(pool.map(call, range(20)))
    assert 1 == len(found)
    if wait_s:
        assert 2 == site.app.extensions["seen"]["/token"]
        assert found.pop().startswith("Bearer ")  # type: ignore[union-attr]
    else:
        assert 1 == site.app.extensions["seen"]["/token"]
        assert 1 <= float(found.pop()) - begun_s <= 66 * 1.1


def test_token_that_is_valid_is_used_while_its_renewal_is_denied(site: Site, sleep: Mock, client_modules: None) -> None:
    from token_source import TokenDenied, TokenSource

    tokens = TokenSource(f"{site.url}/token", *CREDENTIALS, wait_s=0.0, clock=site.clock, sleep=sleep)
    token, life_s = tokens.token(), 864_000
    site.clock.advance(life_s - 20)  # to be renewed
    use_up(site)
    assert {token} == {tokens.token() for _ in range(10)}
    assert 1 == site.app.extensions["seen"]["/token"]
    site.clock.advance(21)
    with pytest.raises(TokenDenied):
        tokens.token()
    site.clock.advance(60)
    assert token != tokens.token()


def test_answer_without_a_usable_retry_after_costs_a_minute(client_modules: None) -> None:
    from token_source import seconds_to_wait

    for value, expected in (("7", 7.0), ("", 60.0), ("soon", 60.0), ("²", 60.0), ("3828", 3828.0)):
        answer = requests.Response()
        answer.headers["Retry-After"] = value
        assert expected <= seconds_to_wait(answer) <= expected * 1.1


def documents(path: Path) -> list[dict[str, object]]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


MANIFESTS = [
    pytest.param(document, id=f"{path.name}-{document['kind']}")
    for path in sorted((EXAMPLES / "kubernetes").glob("*.yaml"))
    for document in documents(path)
]


@pytest.mark.parametrize("manifest", MANIFESTS)
def test_manifest_fits_the_schema_of_kubernetes(manifest: dict[str, object]) -> None:
    kubernetes_validate.validate(manifest, "1.30", strict=True)


@pytest.mark.parametrize(
    "manifest", [param for param in MANIFESTS if "Job" in str(param.id) or "Depl" in str(param.id)]
)
def test_pods_keep_to_the_restricted_profile(manifest: dict[str, Any]) -> None:
    """See https://kubernetes.io/docs/concepts/security/pod-security-standards/."""
    pod = manifest["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert "RuntimeDefault" == pod["securityContext"]["seccompProfile"]["type"]
    for container in pod["containers"]:
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert ["ALL"] == container["securityContext"]["capabilities"]["drop"]
    assert {"configMap", "emptyDir"} >= {kind for volume in pod["volumes"] for kind in volume if kind != "name"}


def test_limits_in_the_configmap_load() -> None:
    (config,) = documents(EXAMPLES / "kubernetes" / "config.yaml")
    assert load_config(yaml.safe_load(config["data"]["ratelimit.yaml"])).policies  # type: ignore[index]


def test_compose_file_fits_its_specification() -> None:
    folder = EXAMPLES / "compose"
    (compose,) = documents(folder / "compose.yaml")
    schema = json.loads((Path(__file__).parent / "compose_spec" / "compose-spec.json").read_text())
    jsonschema.Draft7Validator(schema).validate(compose)
    service = compose["services"]["myauth"]  # type: ignore[index]
    context = (folder / service["build"]["context"]).resolve()
    assert (context / service["build"]["dockerfile"]).exists()
    assert all((folder / volume.partition(":")[0]).exists() for volume in service["volumes"])
    copied = re.findall(r"^COPY (examples/\S+)", (folder / "Dockerfile").read_text(), re.MULTILINE)
    assert copied
    assert all((context / path).exists() for path in copied)


def test_stop_is_longer_than_grace() -> None:
    gunicorn_config = (EXAMPLES / "gunicorn_systemd" / "gunicorn.conf.py").read_text()
    (graceful_s,) = re.findall(r"^graceful_timeout = (\d+)", gunicorn_config, re.MULTILINE)
    grace_s = int(graceful_s) + 7  # what a worker takes at most to send what it has counted
    unit = (EXAMPLES / "gunicorn_systemd" / "myauth.service").read_text()
    compose = (EXAMPLES / "compose" / "compose.yaml").read_text()
    pods = (EXAMPLES / "kubernetes" / "myauth.yaml").read_text()
    for text, pattern in (
        (unit, r"TimeoutStopSec=(\d+)"),
        (compose, r"stop_grace_period: (\d+)s"),
        (pods, r"terminationGracePeriodSeconds: (\d+)"),
    ):
        assert [True] == [int(found) > grace_s for found in re.findall(pattern, text)]


def test_python_of_the_client_readme(client_modules: None) -> None:
    namespace: dict[str, Any] = {}
    exec(the_block(EXAMPLES / "client" / "README.md", "python", "TokenSource"), namespace)
    with namespace["session"] as session:
        assert isinstance(session.auth, namespace["TokenSource"])
