"""Processes that fork."""

import os

import pytest

from tests.chaos.fleet import Instance, assert_exact, held_in

pytestmark = pytest.mark.chaos

USER = "user-0"


# The driver warns of forks in general; what it warns of, using the parent's connections, is what this test rules out.
@pytest.mark.filterwarnings("ignore:MongoClient opened before fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork")
def test_forked_child_starts_at_zero(mongo_uri: str) -> None:
    parent = Instance(mongo_uri)
    parent.hit(USER)
    parent.limiter.sync()
    parent.hit(USER)
    pid = os.fork()
    if not pid:
        status = 1
        try:
            parent.limiter.check("client", USER)
            parent.limiter.check("client", USER)
            parent.limiter.close()
            status = 0
        finally:
            os._exit(status)
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert 3 == held_in(mongo_uri).total()
    parent.hit(USER)
    parent.counted[USER] += 2  # the child's
    assert_exact([parent], mongo_uri)
