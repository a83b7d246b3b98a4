"""The examples do what they say, as far as that can be tried here; each one's README says how far that is."""

import ast
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import types
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import requests
import yaml
from flask import Flask, Response, request

from demo.database import BATCH_JOBS, seed
from demo.server import create_app
from oauth_ratelimit import OAuthRateLimit, load_config
from tests.docs.blocks import ROOT
from tests.support.flows import post
from tests.support.helpers import Clock, wait_until
from tests.support.mongod import free_port
from tests.support.serving import serving

EXAMPLES = ROOT / "examples"
TIMEOUT_S = 60
STOP_TIMEOUT_S = 60


@contextlib.contextmanager
def gunicorn(place: Path, environment: dict[str, str]) -> Iterator[str]:
    """Serve the application of the example with the gunicorn file of the other one."""
    shutil.copytree(EXAMPLES / "app_factory", place, dirs_exist_ok=True)
    port = free_port()
    with (place / "server.log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "gunicorn", "--config", EXAMPLES / "gunicorn_systemd" / "gunicorn.conf.py"],
            cwd=place,
            env={**os.environ, "MYAUTH_BIND": f"127.0.0.1:{port}", **environment, "PYTHONPATH": str(ROOT)},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_until(lambda: _is_open(port) or server.poll() is not None, "gunicorn listens", TIMEOUT_S)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(STOP_TIMEOUT_S)


def _is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_workers_of_the_app_factory_deny_together(tmp_path: Path, mongo_uri: str) -> None:
    """Two workers deny together, a trusted client is not limited, and the health page answers."""
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
def clock() -> Clock:
    """The server's clock and the client's."""
    return Clock()


@pytest.fixture
def app(tmp_path: Path, clock: Clock) -> Iterator[Flask]:
    """The demo's server with two tokens a minute, which counts the requests for each path."""
    database = tmp_path / "demo.sqlite3"
    seed(database)
    app = create_app(database)
    app.config["OAUTH_RATELIMIT_CONFIG"] = {"mode": "enforce", "limits": {"client": ["2/minute"]}}
    OAuthRateLimit(app, app.extensions["authorization_server"], clock=clock)
    app.extensions["seen"] = seen = Counter()

    @app.before_request
    def count() -> None:
        seen[request.path] += 1

    @app.get("/api")
    def api() -> Response:
        return Response(request.headers["Authorization"])

    yield app
    app.extensions["oauth_ratelimit"].close()


class Sleep:
    """A sleep that moves a clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.waits: list[float] = []

    def __call__(self, duration_s: float) -> None:
        self.waits.append(duration_s)
        self._clock.advance(duration_s)


def test_one_token_for_many_calls(app: Flask, clock: Clock, client_modules: None) -> None:
    """A hundred calls cost one token, and a naive client 98 denials. A new one is taken before it expires."""
    from token_source import TokenSource

    with serving(app) as url, requests.Session() as session:
        form = {"grant_type": "client_credentials"}
        naive = Counter(post(f"{url}/token", BATCH_JOBS, form).status_code for _ in range(100))
        assert {200: 2, 429: 98} == naive
        clock.advance(120)
        app.extensions["seen"].clear()
        session.auth = TokenSource(
            f"{url}/token", BATCH_JOBS.client_id, str(BATCH_JOBS.client_secret), clock=clock, sleep=clock.advance
        )
        first = {session.get(f"{url}/api", timeout=TIMEOUT_S).text for _ in range(100)}
        assert 1 == len(first)
        assert 1 == app.extensions["seen"]["/token"]
        clock.advance(864_000)
        assert session.get(f"{url}/api", timeout=TIMEOUT_S).text not in first
    assert 2 == app.extensions["seen"]["/token"]


def test_denied_client_waits_once_and_has_its_token(app: Flask, clock: Clock, client_modules: None) -> None:
    """A denied client waits exactly as long as it is told, once, and then has its token."""
    from token_source import TokenDenied, TokenSource

    sleep = Sleep(clock)

    with serving(app) as url:
        names = (BATCH_JOBS.client_id, str(BATCH_JOBS.client_secret))
        tokens = [TokenSource(f"{url}/token", *names, clock=clock, sleep=sleep).token() for _ in range(3)]
        assert 3 == len(set(tokens))
        assert 1 == len(sleep.waits)
        assert 1 <= sleep.waits[0] <= 66 * 1.1  # the window, the frame in which it began, and a tenth
        with pytest.raises(TokenDenied, match="401"):
            TokenSource(f"{url}/token", BATCH_JOBS.client_id, "wrong", sleep=sleep).token()
    assert 5 == app.extensions["seen"]["/token"]


def test_denied_client_with_requests_oauthlib_waits_once(app: Flask, clock: Clock, client_modules: None) -> None:
    from oauthlib_session import PatientSession

    sleep = Sleep(clock)

    with serving(app) as url:
        for _ in range(3):
            with PatientSession(
                f"{url}/token", BATCH_JOBS.client_id, str(BATCH_JOBS.client_secret), sleep=sleep
            ) as session:
                assert 1 == len({session.get(f"{url}/api", timeout=TIMEOUT_S).text for _ in range(10)})
    assert 1 == len(sleep.waits)
    assert 4 == app.extensions["seen"]["/token"]


def test_answer_without_a_usable_retry_after_costs_a_minute(client_modules: None) -> None:
    """An answer that does not say how long, or says it badly, costs a minute, and none costs for ever."""
    from token_source import wait_s

    for value, expected in (("7", 7.0), ("", 60.0), ("soon", 60.0), ("²", 60.0), ("999999", 300.0)):
        answer = requests.Response()
        answer.headers["Retry-After"] = value
        assert expected <= wait_s(answer) <= expected * 1.1


def documents(path: Path) -> list[dict[str, object]]:
    """Return the documents of a YAML file."""
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


MANIFESTS = [
    pytest.param(document, id=f"{path.name}-{document['kind']}")
    for path in sorted((EXAMPLES / "kubernetes").glob("*.yaml"))
    for document in documents(path)
]


@pytest.mark.parametrize("manifest", MANIFESTS)
def test_manifest_fits_the_schema_of_kubernetes(manifest: dict[str, object]) -> None:
    """Each manifest is one that Kubernetes' own schema allows, with no key that it does not know."""
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


def test_member_of_the_compose_replica_set_keeps_its_name() -> None:
    """A new container has another host name unless one is set, and would not find itself in the configuration."""
    (compose,) = documents(EXAMPLES / "compose" / "compose.yaml")
    mongodb = compose["services"]["mongodb"]  # type: ignore[index]
    assert "mongodb" == mongodb["hostname"]
    assert "host: 'mongodb:27017'" in mongodb["healthcheck"]["test"][-1]


def test_manifest_with_a_misspelt_key_is_refused() -> None:
    """The check above finds a misspelt key."""
    (deployment,) = [
        document for (document,) in (param.values for param in MANIFESTS) if document["kind"] == "Deployment"
    ]
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**deployment, "spec": {"replica": 3}}, "1.30", strict=True)


def test_limits_in_the_configmap_load() -> None:
    (config,) = documents(EXAMPLES / "kubernetes" / "config.yaml")
    assert load_config(yaml.safe_load(config["data"]["ratelimit.yaml"])).policies  # type: ignore[index]


def test_compose_file_fits_its_specification() -> None:
    """The file is one that the Compose specification allows, and what it builds and mounts is there."""
    folder = EXAMPLES / "compose"
    (compose,) = documents(folder / "compose.yaml")
    schema = json.loads((Path(__file__).parent / "compose_spec" / "compose-spec.json").read_text())
    jsonschema.Draft7Validator(schema).validate(compose)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft7Validator(schema).validate({"services": {"a": {"imagee": "b"}}})
    service = compose["services"]["myauth"]  # type: ignore[index]
    context = (folder / service["build"]["context"]).resolve()
    assert (context / service["build"]["dockerfile"]).exists()
    assert all((folder / volume.partition(":")[0]).exists() for volume in service["volumes"])
    copied = re.findall(r"^COPY (examples/\S+)", (folder / "Dockerfile").read_text(), re.MULTILINE)
    assert copied
    assert all((context / path).exists() for path in copied)


def test_systemd_unit_is_valid(tmp_path: Path) -> None:
    """systemd finds nothing wrong with the unit; where there is no systemd, at least its form is right."""
    text = (EXAMPLES / "gunicorn_systemd" / "myauth.service").read_text()
    assert {"Unit", "Service", "Install"} == set(re.findall(r"^\[(\w+)\]$", text, re.MULTILINE))
    lines = [line for line in text.splitlines() if line and line[0] not in "#["]
    assert all(re.fullmatch(r"[A-Z]\w+=\S.*", line) for line in lines)
    program = shutil.which("systemd-analyze")
    if program:
        unit = tmp_path / "myauth.service"
        # What is on the reader's machine and not here: the virtual environment, the user, the file with the password.
        here = re.sub(r"^(User|Group|EnvironmentFile|WorkingDirectory)=.*\n", "", text, flags=re.MULTILINE)
        unit.write_text(here.replace("/srv/myauth/.venv/bin/gunicorn", sys.executable))
        done = subprocess.run(
            [program, "verify", "--man=no", unit], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        assert [] == [line for line in done.stderr.splitlines() if "myauth" in line]


def test_stop_is_longer_than_grace() -> None:
    """Every example gives gunicorn more time to end than it gives its requests."""
    tree = ast.parse((EXAMPLES / "gunicorn_systemd" / "gunicorn.conf.py").read_text())
    values = {
        node.targets[0].id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
    }
    grace_s = values["graceful_timeout"] + 7  # what a worker takes at most to send what it has counted
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
    """The lines in the README make a source that has asked for nothing yet."""
    namespace = types.ModuleType("reader").__dict__
    from tests.docs.blocks import the_block

    exec(the_block(EXAMPLES / "client" / "README.md", "python", "TokenSource"), namespace)
    session = namespace["session"]
    session.close()

    assert isinstance(session.auth, namespace["TokenSource"])
