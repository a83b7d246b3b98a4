"""Names that want to be more than names, in everything that the command line prints of a database full of them."""

import csv
import io
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.overrides import Override, OverrideKind, Target
from oauth_ratelimit.store.mongo.client import Connection
from oauth_ratelimit.store.mongo.overrides import OverrideStore
from tests.cli.conftest import run_command
from tests.support.apps import decide, protected_app
from tests.support.helpers import with_database
from tests.support.hostile_names import CONTROLS, NAMES


@pytest.fixture(scope="module")
def config_path(mongodb: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A configuration whose database holds every name as client, user, reason and operator."""
    uri = with_database(mongodb, "names_everywhere")
    settings = {"store": {"uri": uri}, "mode": "enforce", "limits": {"user": ["2/hour"], "client": ["2/hour"]}}
    with capture_logs(), protected_app(clock=time.time, OAUTH_RATELIMIT_CONFIG=settings) as app:
        for name in filter(None, NAMES.values()):
            person = SimpleNamespace(username=name, client_id=name)
            for _ in range(3):
                decide(app, person, name, "password")
                decide(app, person, None, "client_credentials")
    with closing(Connection(uri)) as connection:
        store = OverrideStore(connection)
        for name in NAMES.values():
            if re.search("[\ud800-\udfff]", name):  # no store takes it
                continue
            target = Target(OverrideKind.MODE, name[:500])
            store.put(Override(target, name[:500], name[:500], time.time(), mode=Mode.DRY_RUN))
        path = tmp_path_factory.mktemp("names") / "limits.yaml"
        path.write_text(json.dumps(settings))
        yield path
        connection.client.drop_database(connection.database)


def check_text(output: str) -> None:
    """Nothing moves a cursor, changes a colour or turns text around."""
    assert set() == (CONTROLS - {"\n"}) & set(output)


def check_csv(output: str) -> None:
    assert set() == (CONTROLS - {"\r", "\n"}) & set(output)
    rows = list(csv.reader(io.StringIO(output, newline="")))
    assert len(rows) > 10
    formulas = [cell for row in rows for cell in row if cell.startswith(tuple("=+-@\t\r\n\uff1d"))]
    assert [] == [cell for cell in formulas if not re.fullmatch(r"-?[0-9.]+", cell)]


def check_json(output: str) -> None:
    assert output.isascii()
    assert json.loads(output)


LISTS = [("show", "-n", "100"), ("overrides",), ("overrides", "--history"), ("report",)]
TEXTS = [
    *LISTS,
    ("show", "\x1b[2J\x1b[31mred\x07"),
    ("explain", "a\r\nRetry-After: 0\r\n\r\nb", "\u202egnp.exe"),
    ("explain", "\u2066unknown\x9b31m", "\x07"),
    ("report", "--format", "text"),
    ("what-if", "--limit", "1/hour"),
    ("erase", "--user", "\x1b[2J\x1b[31mred\x07", "--dry-run"),
    ("status",),
    ("mode",),
]


@pytest.mark.parametrize(
    ("words", "check"),
    [
        *((words, check_text) for words in TEXTS),
        *(((*words, "--format", "csv"), check_csv) for words in LISTS),
        *(((*words, "--json"), check_json) for words in (*LISTS, ("what-if", "--limit", "1/hour"))),
    ],
)
def test_names_are_escaped_in_every_format(
    config_path: Path, words: tuple[str, ...], check: Callable[[str], None]
) -> None:
    result = run_command("--config", str(config_path), *words)

    assert 0 == result.exit_code, result.output
    check(result.output)
