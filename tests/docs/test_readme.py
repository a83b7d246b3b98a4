"""The README works as printed."""

import json
import re
import types
from pathlib import Path

import pytest
import requests
from structlog.testing import capture_logs

from testbed.clock import wait_until
from testbed.oauth_server.database import BATCH_JOBS
from tests.docs.blocks import PAGES, ROOT, the_block
from tests.support.flows import post
from tests.support.sites import serving

README = ROOT / "README.md"


def block(language: str, containing: str) -> str:
    return the_block(README, language, containing)


@pytest.fixture
def config_path(place: Path, mongo_uri: str) -> Path:
    """The README's configuration in the current directory, with the address of the test's database."""
    path = place / "ratelimit.yaml"
    path.write_text(block("yaml", "mode: dry-run").replace("mongodb://localhost:27017/oauth", mongo_uri))
    return path


def test_ten_lines_protect_a_server(config_path: Path, myserver: types.ModuleType) -> None:
    exec(compile(block("python", "from myserver import"), "README.md", "exec"), {})

    with serving(myserver.app) as url:

        def ask() -> requests.Response:
            return post(f"{url}/token", BATCH_JOBS, {"grant_type": "client_credentials"})

        with capture_logs() as events:
            assert {200} == {ask().status_code for _ in range(110)}
        config_path.write_text(config_path.read_text().replace("mode: dry-run", "mode: enforce"))
        wait_until(lambda: ask().status_code == 429, "the file is read again")
        denied = ask()
    (event,) = [event for event in events if event["event"] == "request_would_be_denied"]
    assert all(str(event[key]) == value for key, value in re.findall(r"(\w+)=([\w-]+) ", block("text", event["event"])))
    assert_is_printed(denied)


def assert_is_printed(denied: requests.Response) -> None:
    """The README shows the headers and members that a denial has; numbers of seconds differ."""
    head, _, body = block("http", "429 TOO MANY").partition("\n\n")
    for name, value in (line.split(": ", 1) for line in head.splitlines()[1:]):
        if name in ("Retry-After", "X-RateLimit-Reset"):
            assert 1 <= int(denied.headers[name]) <= 66
        else:
            assert re.sub(r"t=\d+", "t=", value) == re.sub(r"t=\d+", "t=", denied.headers[name])
    assert json.loads(body).keys() == denied.json().keys()


def test_limiter_without_a_framework_decides(config_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exec(the_block(ROOT / "docs" / "reference-python.md", "python", "Limiter(load_config"), {})
    assert "True 9 0.0\n" == capsys.readouterr().out


def links_of(path: Path) -> list[tuple[str, str]]:
    """Return the files and the headings that a page links to, without those in its code."""
    page = re.sub(r"^ *```.*?^ *```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    targets = [target for target in re.findall(r"\]\(([^)\s]+)\)", page) if "://" not in target]
    return [(file, heading) for file, _, heading in (target.partition("#") for target in targets)]


def headings_of(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_to_files_and_headings(path: Path) -> None:
    links = links_of(path)
    assert set() == {file for file, _ in links if not (path.parent / file).exists()}
    targets = [(path.parent / file if file else path, heading) for file, heading in links if heading]
    assert set() == {(target.name, heading) for target, heading in targets if heading not in headings_of(target)}
