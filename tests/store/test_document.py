"""Form of counter documents."""

import pytest

from oauth_ratelimit.core.key import Key
from oauth_ratelimit.core.tier import Series
from oauth_ratelimit.store.mongo.document import compose, parse
from tests.support.stores import a_change

NAMES = {
    "6": Series(6),
    "6+denied": Series(6, count_denied=True),
    "6+dry-run": Series(6, on_trial=True),
    "31622400+denied+dry-run": Series(31_622_400, count_denied=True, on_trial=True),
}


@pytest.mark.parametrize(("name", "series"), NAMES.items())
def test_series_has_the_name_that_stored_documents_have(name: str, series: Series) -> None:
    """It is read and written under that name."""
    snapshot = parse({"version": 5, "requestCounters": {name: {"600": 2}}})
    assert ({series: {600: 2}}, ()) == (snapshot.hits, snapshot.damage)
    [operation] = compose("here", [a_change(Key("app", None), version=5, next_version=6, hits={series: {600: 1}})])
    assert f"'requestCounters.{name}.600': 1" in repr(operation)


@pytest.mark.parametrize("name", ["0", "06", "-6", "6+", "6+else", "6+dry-run+denied", "6" * 5000])
def test_series_of_another_form_is_damage(name: str) -> None:
    """Its hits count as not there."""
    snapshot = parse({"version": 5, "requestCounters": {name: {"600": 2}}})
    assert ({}, ("requestCounters",)) == (snapshot.hits, snapshot.damage)
