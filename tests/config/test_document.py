"""Reading of YAML files."""

import os
import re
import runpy
import time
from pathlib import Path

import pytest
import yaml

from oauth_ratelimit.config import document
from oauth_ratelimit.config.document import EMPTY, parse_yaml
from oauth_ratelimit.config.loader import MAX_FILE_BYTES, read_file
from oauth_ratelimit.errors import ConfigError
from tests.support.helpers import NUL_PROBLEM


@pytest.fixture(params=[True, False], ids=["libyaml", "without libyaml"], autouse=True)
def with_libyaml(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parses with libyaml, or as where PyYAML comes without it."""
    if not request.param:
        with monkeypatch.context() as patch:
            patch.setattr(yaml, "__with_libyaml__", False)
            plain = runpy.run_path(document.__file__)
        monkeypatch.setitem(globals(), "parse_yaml", plain["parse_yaml"])


def test_long_list_is_refused_before_it_is_read() -> None:
    """40,000 limits of a kind took minutes, on the thread that applies the file."""
    content = b"limits: {client: [" + b"1/s," * 200_000 + b"]}"
    begun_s = time.process_time()
    assert problem_of(content).startswith("not usable YAML: a list of more than 10,000 items")
    assert time.process_time() - begun_s < 10  # without libyaml; 0.1 with it


def problem_of(content: bytes) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_yaml(content, source="limits.yaml")
    (problem,) = caught.value.problems
    return problem


@pytest.mark.parametrize("content", [b"", b"   \n", b"# nothing but a comment\n", b"---\n", b"null\n", b"\xef\xbb\xbf"])
def test_empty_document_is_refused(content: bytes) -> None:
    """A file that is being written looks the same; the message says what to write instead."""
    assert problem_of(content) == EMPTY


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"[1, 2]", "got a list, allowed: a mapping"),
        (b"enforce", 'got "enforce", allowed: a mapping'),
        (b"mongodb://user:secret@host/", 'got "mongodb://…", allowed: a mapping'),
        (b"a: {b: 1, c: 2, b: 3}", 'not usable YAML: the key "b" is there twice (line 1, column 17)'),
        (
            b"a: &x [1]\nb: *x\n",
            "not usable YAML: aliases (*name) are not allowed; what clients share goes into a plan",
        ),
        (b"mode: !!python/name:os.system\n", "not usable YAML: tags (!name) are not allowed (line 1, column 7)"),
        (b"mode: [1\n", "not usable YAML: .*expected ',' or ']'.* (line 2, column 1)"),
        (b"a: 1\n---\nb: 2\n", "not usable YAML: but found another document (line 2, column 1)"),
        (b"? [1]\n: 2\n", "not usable YAML: found unhashable key (line 1, column 3)"),
        (b"mode: \x00\n", "not YAML: .* characters are not allowed"),
        ("mode: 'off'".encode("utf-16-le"), "not YAML: .* characters are not allowed"),
        (
            b"mode: off\nreason: \xfcber\n",
            "not UTF-8: byte 0xfc in line 2; if the file is in Latin-1, convert it: iconv ",
        ),
        (b"limit: " + b"9" * 5000, "not YAML: a number is too long"),
    ],
)
def test_document_that_is_no_plain_mapping_is_refused(content: bytes, expected: str) -> None:
    """Its parsers use different words for some."""
    assert re.match(re.escape(expected).replace(r"\.\*", ".*"), problem_of(content))


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 100_000,
        b"? " * 100_000,
        b"a: &a [x,x,x,x,x,x,x,x,x]\n"
        + b"".join(b"%c: &%c [%s]\n" % (n, n, b",".join([b"*%c" % (n - 1)] * 9)) for n in range(ord("b"), ord("z"))),
    ],
    ids=["lists", "keys", "a billion laughs"],
)
def test_bomb_is_refused_after_little_work(content: bytes) -> None:
    start_s = time.thread_time()  # of this thread alone
    assert problem_of(content).startswith("not usable YAML: ")
    assert time.thread_time() - start_s < 5


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("off", "off"),
        ("no", "no"),
        ("true", True),
        ("False", False),
        ("010", "010"),
        ("1_000", 1000),
        ("1:30", "1:30"),
        ("1e3", 1000.0),
        ("~", None),
        ("2024-01-01", "2024-01-01"),
        ("0x10", "0x10"),
        ("<<", "<<"),
    ],
)
def test_value_has_the_type_that_readers_expect(written: str, expected: object) -> None:
    """None of the surprises of YAML 1.1."""
    value = parse_yaml(f"key: {written}".encode(), source="limits.yaml")["key"]
    assert (expected, type(expected)) == (value, type(value))


def test_path_without_a_regular_file_of_sensible_size_is_refused(tmp_path: Path) -> None:
    """Opening a pipe does not wait for its writer."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "huge").write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    (tmp_path / "loop").symlink_to("loop")
    expected = {
        "missing": "cannot be read: No such file or directory",
        "": "cannot be read: Is a directory",
        "pipe": "cannot be read: it is not a regular file",
        "huge": "cannot be read: it is larger than 1000000 bytes",
        "loop": "cannot be read: Too many levels of symbolic links",
        "nul\x00": f"cannot be read: {NUL_PROBLEM}",
    }
    found = {}
    for name in expected:
        with pytest.raises(ConfigError) as caught:
            read_file(str(tmp_path / name))
        (found[name],) = caught.value.problems
    assert expected == found


@pytest.mark.parametrize("codec", ["utf-16", "utf-8-sig"])
def test_byte_order_mark_names_the_encoding(codec: str) -> None:
    assert {"mode": "enforce"} == parse_yaml("mode: enforce".encode(codec), source="file")
