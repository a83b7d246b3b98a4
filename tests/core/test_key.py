"""Keys, and names that can be stored."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oauth_ratelimit.core.key import MAX_NAME_LENGTH, Key, logged_name, matches_any, storable_name, visible_name

ANY_NAME = st.text(st.characters(), max_size=50)  # lone surrogates included


SHORT = ("", "app", "None", "a\0b", "$set", "a.b", "\u202egnp", "a\r\nb", "é", "e\u0301", "\U0001f511")


@pytest.mark.parametrize("name", (*SHORT, "x" * MAX_NAME_LENGTH), ids=range(len(SHORT) + 1))
def test_short_valid_name_is_stored_as_it_is(name: str) -> None:
    assert name == storable_name(name)


@pytest.mark.parametrize(
    "name", ("x" * (MAX_NAME_LENGTH + 1), "\ud800", "a\udfffb", "\ud83d\udd11", "x" * 5_000_000), ids=range(5)
)
def test_other_name_is_cut_and_ends_with_its_digest(name: str) -> None:
    stored = storable_name(name)
    assert len(stored) <= 64 + 1 + 64
    head, digest = stored.rsplit("~", 1)
    assert 64 == len(digest)
    assert head.replace("?", "") == name[: len(head)].encode("utf-8", "ignore").decode()
    assert stored == storable_name(stored)


@given(one=ANY_NAME, other=ANY_NAME, head=st.sampled_from(("", "x" * 1000)))
def test_different_names_stay_different(one: str, other: str, head: str) -> None:
    """They do even if they differ only far from the beginning."""
    assert (one == other) == (storable_name(head + one) == storable_name(head + other))


def test_different_keys_stay_different() -> None:
    """It matters where one name ends and the next begins, and no user is not "None"."""
    keys = {Key("a:b", "c"), Key("a", "b:c"), Key("a", None), Key("a", "None"), Key("a", ""), Key("a", None, "c")}
    assert 6 == len(keys)
    assert Key("a", None) == Key("a", None, None)


def test_invisible_characters_are_shown_as_escapes() -> None:
    """A backslash that was in the name is doubled then, so that it differs from an escape."""
    assert "plain é\U0001f511" == visible_name("plain é\U0001f511")
    assert "a\\x1b[31m\\r\\n\\u202e" == visible_name("a\x1b[31m\r\n\u202e")
    assert "a\\\\n\\n" == visible_name("a\\n\n")


def test_logged_name_tells_names_apart() -> None:
    names = ["a=b", "a\\x3db", "a\\\\x3db", "a\nb", "a\\nb", "plain"]
    shown = list(map(logged_name, names))
    assert len(names) == len(set(shown))
    assert ["a\\x3db", "plain"] == [shown[0], shown[-1]]


@pytest.mark.parametrize(
    ("patterns", "name", "expected"),
    [
        (("app[1]",), "app[1]", True),
        (("app[12]",), "app1", True),
        (("*",), "two\nlines", True),
        (("app",), "my-app-2", False),
        (("App*",), "app", False),
        ((), "app", False),
    ],
)
def test_pattern_matches_the_whole_name_and_itself(patterns: tuple[str, ...], name: str, expected: bool) -> None:
    assert expected is matches_any(patterns, name)
