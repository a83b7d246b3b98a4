"""Tables on terminals, escaped names, hints about unknown clients."""

import csv
import io
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner

from oauth_ratelimit import Limiter
from oauth_ratelimit.cli import command, database, explain, overrides, statistics, status
from oauth_ratelimit.cli.context import CliContext
from oauth_ratelimit.cli.output import ESCAPE, Column, Name, Number, print_facts, print_records, print_table
from oauth_ratelimit.operations.format import Record
from tests.cli.conftest import WHY, Terminal
from tests.support.limiters import send_hits

UNKNOWN = "No counters, statistics or configuration for"


TABLES = {
    f"{module.__name__.split('.')[-1]} {name}": columns
    for module in (database, explain, overrides, statistics, status)
    for name, columns in vars(module).items()
    if name.endswith("COLUMNS")
}
LONG = "some-client-with-a-name-that-has-no-space-in-it, and a reason"


def test_bar_is_drawn_on_a_terminal_for_many_minutes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for is_terminal, size, is_drawn in ((False, 9000, False), (True, 90, False), (True, 9000, True)):
        monkeypatch.setattr(sys.stderr, "isatty", lambda answer=is_terminal: answer)
        context = CliContext(None, None, None)
        statistics = SimpleNamespace(
            minutes=lambda *_, size=size, **__: iter(range(size)), count=lambda *_, size=size: size
        )
        monkeypatch.setitem(vars(context), "stores", SimpleNamespace(statistics=statistics))
        assert [*range(size)] == [*context.minutes(0.0)]
        assert is_drawn is ("reading" in capsys.readouterr().err)


@pytest.mark.parametrize("columns", TABLES.values(), ids=TABLES)
def test_table_folds_to_the_width_of_a_terminal_alone(
    columns: list[Column], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    values = [
        "number" if column.is_number else "time" if column.is_whole else "name" if isinstance(column, Name) else "text"
        for column in columns
    ]
    filled = [replace(column, value=value) for column, value in zip(columns, values, strict=True)]
    time = "2026-12-01T14:05:00Z"[11 * (values.count("time") > 1) :]
    row: Record = {"number": 12345, "text": LONG, "name": "a" * 90, "time": time}
    print_table(filled, [row])
    assert 2 == len(capsys.readouterr().out.splitlines()), "one line for each row in a pipe"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    print_table(filled, [row])
    output = capsys.readouterr().out

    assert 80 >= max(map(len, output.splitlines())), output
    assert values.count("time") == output.count(time), "a time stands on one line"
    assert values.count("name") == output.count("aaaaaaa…"), "a long name is cut to what is left"


@pytest.mark.parametrize(
    ("room", "line"),
    [
        (80, "mobile-app  127.0.0.66 nils  failures-address: 30 per 10 minute         9"),
        (60, "mobile-app  127.0.0.66 nils  failures-address: 30          9"),
        (50, "mobile-app  127.0.0.66 nils  failures-           9"),
        (44, "mobile-app  127.0.0.66…  failures-         9"),
    ],
)
def test_names_are_cut_only_where_all_other_columns_are_folded(
    room: int, line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(room))
    columns = [Name("client", "client"), Name("user", "user"), Column("limit", "limit"), Number("requests", "requests")]
    limit = "failures-address: 30 per 10 minute"
    print_table(columns, [{"client": "mobile-app", "user": "127.0.0.66 nils", "limit": limit, "requests": 9}])

    assert line == capsys.readouterr().out.splitlines()[1]


def test_columns_are_aligned_by_the_cells_that_letters_take(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Emoji and letters of East Asia take two, accents that are characters of their own none."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "26")
    cells = {
        "rocket \U0001f600\U0001f680 client": 18,
        "\u65e5\u672c\u8a9e": 6,
        "cafe\u0301": 4,
        "a-client-of-the-shop": 20,
    }
    print_table([Name("client", "name"), Number("hits", "hits")], [{"name": name, "hits": 7} for name in cells])
    rows = capsys.readouterr().out.splitlines()[1:]

    assert [f"{name}{' ' * (20 - count)}     7" for name, count in cells.items()] == rows


LATIN_1 = CliRunner(charset="iso-8859-1")


def test_table_has_plainer_signs_on_an_output_that_lacks_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oauth_ratelimit.cli.output._terminal_width", lambda _: 20)

    @click.command()
    def shown() -> None:
        columns = [Name("client", "client"), Column("user", "user"), Number("hits", "hits")]
        print_table(columns, [{"client": "some-client", "user": None, "hits": None}])
        print_facts([("limit", None)])

    result = LATIN_1.invoke(shown, catch_exceptions=False)
    assert ["client    user  hits", "some-cl~  -        -", "limit  -"] == result.stdout.splitlines()


@pytest.mark.parametrize("form", ["table", "csv", "text", "jsonl"])
def test_client_whose_name_the_output_lacks_ends_no_command(form: str) -> None:
    requests = "".join(f"{at_s},\u65e5\u672c\n" for at_s in range(3600))
    options = ("report", "--file", "-", "--format", form)
    result = LATIN_1.invoke(command, options, input=requests.encode(), catch_exceptions=False)

    assert (0, True) == (result.exit_code, r"\u65e5\u672c" in result.stdout), result.output


@pytest.mark.parametrize(
    "names", [("a\\nb", "a\nb"), ("x\x1b[1m", "x\\x1b[1m"), ("=1", "'=1", "''=1"), ("\\\x07", "\\\\x07", "\\x07")]
)
def test_csv_tells_names_apart(names: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    print_records("csv", [{"name": name} for name in names], [])
    cells = [cell for (cell,) in csv.reader(io.StringIO(capsys.readouterr().out, newline=""))][1:]

    assert len(names) == len(set(cells)), cells
    unescaped = [re.sub(r"^'('*[=])", r"\1", cell) for cell in cells]
    assert list(names) == [
        name.encode("latin-1").decode("unicode_escape") if ESCAPE.search(name) else name for name in unescaped
    ]


def test_sentences_wrap_between_words_on_a_terminal_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "24")
    whole, folded = "forecast  denied: over the limit user\n", "forecast  denied: over\n          the limit user\n"
    for is_terminal, expected in ((False, whole), (True, folded)):
        monkeypatch.setattr(sys.stdout, "isatty", lambda answer=is_terminal: answer)
        print_facts([("forecast", "denied: over the limit user")])
        assert expected == click.unstyle(capsys.readouterr().out)


@pytest.mark.parametrize(
    "words",
    [
        ("show",),
        ("explain",),
        ("reset", "--yes"),
        ("limit", "set", "--limit", "9/hour", "--kind", "user", "--yes", *WHY),
        ("mode", "set", "off", *WHY, "--client"),
        ("trust", "add", *WHY),
        ("report", "--client"),
        ("what-if", "--limit", "1/minute", "--client"),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_unknown_client_gets_a_suggestion(terminal: Terminal, limiter: Limiter, words: tuple[str, ...]) -> None:
    send_hits(limiter, 1, "web-shop", "alice")
    result = terminal.run(*words, "wbe-shop")

    assert (0, f"{UNKNOWN} 'wbe-shop'; did you mean 'web-shop'?") == (result.exit_code, result.stderr.splitlines()[-1])
    assert UNKNOWN not in terminal.run(*words, "web-shop").stderr


def test_hint_is_a_field_of_the_json(terminal: Terminal) -> None:
    result = terminal.run("explain", "partnr", "--json")

    assert f"{UNKNOWN} 'partnr'; did you mean 'partner'?" == json.loads(result.stdout)["hint"]
    assert "" == result.stderr
    assert None is terminal.data("explain", "partner")["hint"]


@pytest.mark.parametrize(("no_color", "has_colours"), [("", True), ("1", False)])
def test_no_color_switches_colours_off_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, no_color: str, has_colours: bool
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    path = tmp_path / "ratelimit.yaml"
    path.write_text("mode: dry-run\n")
    words = ["check-config", str(path)]

    assert has_colours == ("\x1b[" in CliRunner().invoke(command, words, color=True).output)
    assert "\x1b[" not in CliRunner().invoke(command, words).output
