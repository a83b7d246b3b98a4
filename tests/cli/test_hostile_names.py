"""Names that want to be more than names, in everything that the command line prints of a database full of them."""

import csv
import io
import json
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import structlog
from click.testing import CliRunner, Result
from structlog.testing import capture_logs

from oauth_ratelimit.cli import command
from oauth_ratelimit.core.failed_auth import folded, password_keys
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.overrides import Override, OverrideKind, Target
from oauth_ratelimit.guard import Guess
from oauth_ratelimit.store.mongo.client import Connection
from oauth_ratelimit.store.mongo.overrides import OverrideStore
from tests.support.apps import protected_app
from tests.support.helpers import with_database
from tests.support.hostile_names import CONTROLS, NAMES

LIMITS = {"user": ["2/hour"], "client": ["2/hour"]}
FAILURES = {"mode": "enforce", "limits": {"user": ["1/hour"]}}


class Named:
    """A client or a user."""

    def __init__(self, name: str) -> None:
        self.username = name

    def get_client_id(self) -> str:
        """Return its name, as Authlib's clients do."""
        return self.username


@pytest.fixture(scope="module")
def config_path(mongodb: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A configuration whose database holds every name as client, user, reason and operator."""
    uri = with_database(mongodb, "names_everywhere")
    settings = {"store": {"uri": uri}, "mode": "enforce", "limits": LIMITS, "guard": FAILURES}
    with capture_logs(), protected_app(clock=time.time, OAUTH_RATELIMIT_CONFIG=settings) as app:
        app_limiter = app.extensions["oauth_ratelimit"]
        for name in filter(None, NAMES.values()):
            for _ in range(3):
                app_limiter.check(Named(name), name, grant_type="password")
                app_limiter.check(Named(name), None, grant_type="client_credentials")
            keys = password_keys(name, (folded(name),), ("192.0.2.7",), is_public=True)
            guess = app_limiter.guard().reserve(keys)
            if isinstance(guess, Guess):
                app_limiter.guard().settle(guess, failed=keys)
            app_limiter.guard().reserve(keys)
    with closing(Connection(uri)) as connection:
        store = OverrideStore(connection)
        for name in filter(is_writable, NAMES.values()):
            target = Target(OverrideKind.MODE, name[:500])
            store.put(Override(target, name[:500], name[:500], time.time(), mode=Mode.DRY_RUN))
        path = tmp_path_factory.mktemp("names") / "limits.yaml"
        path.write_text(json.dumps(settings))
        yield path
        connection.client.drop_database(connection.database)


def is_writable(name: str) -> bool:
    """Return True if MongoDB accepts the name as text."""
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


def run(path: Path, *words: str) -> Result:
    """Run a command in a process that has not configured its log."""
    structlog.reset_defaults()
    return CliRunner().invoke(command, ["--config", str(path), *words], catch_exceptions=False)


FOR_PEOPLE = {
    "top": ("top", "-n", "100"),
    "show": ("show", "\x1b[2J\x1b[31mred\x07"),
    "explain": ("explain", "a\r\nRetry-After: 0\r\n\r\nb", "\u202egnp.exe"),
    "explain, unknown": ("explain", "\u2066unknown\x9b31m", "\x07"),
    "overrides": ("overrides",),
    "history": ("overrides", "--history"),
    "report": ("report",),
    "what-if": ("what-if", "--limit", "1/hour"),
    "erase": ("erase", "\x1b[2J\x1b[31mred\x07", "--dry-run"),
    "status": ("status",),
    "mode": ("mode",),
}


@pytest.mark.parametrize("words", FOR_PEOPLE.values(), ids=FOR_PEOPLE)
def test_output_for_people_has_no_control_characters(config_path: Path, words: tuple[str, ...]) -> None:
    """Nothing moves a cursor, changes a colour or turns text around."""
    result = run(config_path, *words)

    assert result.exit_code in (0, 1), result.output
    assert set() == (CONTROLS - {"\n"}) & set(result.output)


@pytest.mark.parametrize(
    "words", [("export", "counters"), ("export", "overrides"), ("export", "history"), ("report",)], ids=" ".join
)
def test_table_has_no_formulas_and_no_control_characters(config_path: Path, words: tuple[str, ...]) -> None:
    result = run(config_path, *words, "--format", "csv")
    assert 0 == result.exit_code
    assert set() == (CONTROLS - {"\r", "\n"}) & set(result.output)
    rows = list(csv.reader(io.StringIO(result.output, newline="")))
    assert len(rows) > 10
    starts = tuple("=+-@\t\r\uff1d")
    assert [] == [cell for row in rows for cell in row if cell.startswith(starts) and not is_number(cell)]


def is_number(cell: str) -> bool:
    """Return True if a cell is a plain number."""
    try:
        float(cell)
    except ValueError:
        return False
    return True


FOR_PROGRAMS = {
    "top": ("top", "-n", "100", "--json"),
    "overrides": ("overrides", "--json"),
    "export of counters": ("export", "counters"),
    "export of history": ("export", "history"),
    "report": ("report", "--format", "json"),
    "what-if": ("what-if", "--limit", "1/hour", "--json"),
    "status": ("status", "--json"),
}


@pytest.mark.parametrize("words", FOR_PROGRAMS.values(), ids=FOR_PROGRAMS)
def test_output_for_programs_is_valid_json_in_ascii(config_path: Path, words: tuple[str, ...]) -> None:
    result = run(config_path, *words)

    assert 0 == result.exit_code
    assert result.output.isascii()
    documents: list[Any] = [json.loads(line) for line in result.output.splitlines()] if words[0] == "export" else []
    assert documents or json.loads(result.output) is not None


def test_report_escapes_markup(config_path: Path) -> None:
    result = run(config_path, "report", "--format", "html")

    assert 0 == result.exit_code
    assert "<script" not in result.output
    assert "&lt;script&gt;" in result.output
    assert set() == (CONTROLS - {"\n"}) & set(result.output)
