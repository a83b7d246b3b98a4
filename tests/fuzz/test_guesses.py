"""A short run of the sessions of ``python -m tests.fuzz guesses``, from fixed seeds."""

from collections import Counter

from tests.fuzz.grammar import a_session
from tests.fuzz.guessing import servers


def test_guarded_server_answers_like_a_plain_one_and_checks_no_more_than_the_limits() -> None:
    """The sessions hold tokens, errors and denials."""
    statuses: Counter[int] = Counter()
    for seed in range(20):
        statuses += servers().send(a_session(seed))

    assert {200, 400, 401, 429} <= set(statuses)
