"""Any session of guessing is answered as by a plain server, but for denials."""

import atexit
from contextlib import ExitStack
from functools import cache

import pytest
from hypothesis import Phase, given, settings

from tests.fuzz.grammar import Attempt, sessions
from tests.fuzz.guessing import SETTINGS, Servers, both_servers


@cache
def servers() -> Servers:
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(both_servers(SETTINGS))


@pytest.mark.slow
@settings(max_examples=60, derandomize=True, phases=[Phase.generate])  # a failure would shrink for minutes
@given(session=sessions())
def test_guarded_server_answers_like_a_plain_one_and_checks_no_more_than_the_limits(session: list[Attempt]) -> None:
    servers().send(session)
