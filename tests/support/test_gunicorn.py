"""The gunicorn server that other tests run applications in."""

import pytest

from tests.support.gunicorn import Gunicorn, ServerFailed

pytestmark = pytest.mark.slow


def test_failed_start_is_an_error_with_the_log() -> None:
    with pytest.raises(ServerFailed, match="No module named 'no_such_module'"), Gunicorn("no_such_module:app"):
        pass
