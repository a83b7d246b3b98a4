"""Every code block of the documentation is one that works.

What belongs together to a story (README, tutorial, migration) is run as one by a test of its own; here each block is
checked by itself.
"""

import configparser
import importlib.util
import json
import queue
import re
import shlex
import subprocess
import types
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from oauth_ratelimit import OAuthRateLimit, load_config
from oauth_ratelimit.cli import command as cli
from tests.docs.blocks import PAGES, ROOT, Block, all_blocks, blocks_of

SHELLS = ("console", "shell", "sh", "bash")
CODE = ("python", "yaml", "json", "ini", *SHELLS)
NOT_CODE = ("text", "http", "dockerfile", "promql")  # what programs print, and what no test can run
SITE = ("{toctree}", "{include}", "{eval-rst}")  # checked when the site is built
# Pages whose Python is run by a test of their own.
OWN_STORY = {"docs/tutorial.md", "docs/migrating-from-flask-limiter.md", "examples/client/README.md"}


def named(blocks: list[Block]) -> Any:
    return pytest.mark.parametrize("block", blocks, ids=[block.name for block in blocks])


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_block_has_a_language_that_a_test_knows(path: Path) -> None:
    languages = {block.name: block.language for block in blocks_of(path)}
    assert {} == {name: it for name, it in languages.items() if it not in (*CODE, *NOT_CODE, *SITE)}


@named([block for block in all_blocks("python") if block.page not in OWN_STORY])
def test_python_block_runs_without_an_error(
    block: Block, myserver: types.ModuleType, place: Path, mongo_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lines run in the reader's module, where the application and its server are at hand.

    Where they cannot run, they are Python all the same.
    """
    (place / "ratelimit.yaml").write_text(yaml.safe_dump({"store": {"uri": mongo_uri}}))
    code = compile(block.text, block.name, "exec")
    given = {**vars(myserver), "OAuthRateLimit": OAuthRateLimit, "queue": queue.Queue(), "monkeypatch": monkeypatch}
    if not block.reason:
        exec(code, given)


@named([block for block in all_blocks("yaml") if not block.reason])
def test_yaml_block_is_a_valid_configuration(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in re.findall(r"\benv: (\w+)", block.text):
        monkeypatch.setenv(name, name * 4)
    assert load_config(yaml.safe_load(block.text)).policies


@named([block for block in all_blocks("yaml", "json", "ini") if block.reason or block.language != "yaml"])
def test_block_of_another_file_is_well_formed(block: Block) -> None:
    if block.language == "ini":
        parser = configparser.ConfigParser(strict=False, interpolation=None)
        parser.read_string(block.text)
        assert parser.sections()
    elif block.language == "json":
        assert json.loads(block.text)
    else:
        assert all(yaml.safe_load_all(block.text))


@named(all_blocks(*SHELLS))
def test_commands_exist_with_their_options(block: Block, place: Path) -> None:
    (place / "ratelimit.yaml").touch()
    commands = commands_of(block)
    assert commands, f"{block.name}: nothing to run; commands in a console stand behind a dollar sign"
    subprocess.run(["bash", "-n"], input="\n".join(commands), check=True, text=True, capture_output=True)
    for line in commands:
        check_command(shlex.split(line, comments=True))


def commands_of(block: Block) -> list[str]:
    """Return the commands of a block of shell lines; in a ``console`` they stand behind ``$``."""
    mark = "$ " if block.language == "console" else ""
    lines = block.text.replace("\\\n", " ").splitlines()
    return [line.removeprefix(mark) for line in lines if line.strip() and line.startswith(mark)]


def check_command(words: list[str]) -> None:
    """Fail if a program of this project is called in a way that it does not know."""
    if "oauth-ratelimit" in words:
        check_click(cli, words[words.index("oauth-ratelimit") + 1 :])
    elif "-m" in words and (module := words[words.index("-m") + 1]).startswith(("oauth_ratelimit", "benchmarks")):
        assert importlib.util.find_spec(module), module
    elif words[:1] == ["make"]:
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert {word for word in words[1:] if "=" not in word and not word.startswith("-")} <= set(targets)


def check_click(command: click.Command, words: list[str], parent: click.Context | None = None) -> None:
    # Redirections and further commands are the shell's.
    ends = [index for index, word in enumerate(words) if word in ("|", ">", ">>", "&&", "||", ";")]
    words = words[: ends[0]] if ends else words
    if "--help" in words:
        words = words[: words.index("--help")]
        if not words:
            return
    with command.make_context(command.name, list(words), parent=parent) as context:
        if isinstance(command, click.Group):
            rest = [*context._protected_args, *context.args]
            name, found, rest = command.resolve_command(context, rest)
            assert found is not None, name
            check_click(found, rest, context)
