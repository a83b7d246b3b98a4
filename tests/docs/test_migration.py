"""Both halves of the migration page, on the same server."""

import types
from dataclasses import replace
from pathlib import Path

from testbed.oauth_server.database import BATCH_JOBS
from tests.docs.blocks import ROOT, the_block
from tests.support.flows import post, request_by
from tests.support.helpers import statuses
from tests.support.sites import serving

PAGE = ROOT / "docs" / "migrating-from-flask-limiter.md"
FORM = {"grant_type": "client_credentials"}


def pretend(url: str) -> int:
    return post(f"{url}/token", replace(BATCH_JOBS, client_secret="wrong"), FORM).status_code


def test_flask_limiter_denies_the_eleventh_token(myserver: types.ModuleType) -> None:
    exec(compile(the_block(PAGE, "python", "# before.py"), "before.py", "exec"), {})
    with serving(myserver.app) as url:
        assert {401} == {pretend(url) for _ in range(10)}
        assert [200] * 10 == statuses(request_by(BATCH_JOBS, f"{url}/token", FORM), 10)
        answer = post(f"{url}/token", BATCH_JOBS, FORM)
    assert 429 == answer.status_code
    assert "temporarily_unavailable" == answer.json()["error"]


def test_extension_denies_the_eleventh_token(myserver: types.ModuleType, place: Path) -> None:
    (place / "ratelimit.yaml").write_text(the_block(PAGE, "yaml", "# ratelimit.yaml"))
    exec(compile(the_block(PAGE, "python", "# after.py"), "after.py", "exec"), {})
    with serving(myserver.app) as url:
        assert {401} == {pretend(url) for _ in range(10)}
        assert [200] * 10 + [429] == statuses(request_by(BATCH_JOBS, f"{url}/token", FORM), 11)
        denied = post(f"{url}/token", BATCH_JOBS, FORM)
    assert "temporarily_unavailable" == denied.json()["error"]
    assert int(denied.headers["Retry-After"]) >= 1
