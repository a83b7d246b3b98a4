"""Client and user of a request, from the application's own objects."""

from types import SimpleNamespace
from typing import Any

import pytest

from oauth_ratelimit.flask_authlib.caller import Caller, caller_of_token, username_of


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"username": "alice", "get_user_id": lambda: 7, "id": 8}, "alice"),
        ({"get_user_id": lambda: 7, "id": 8}, "7"),
        ({"id": 8}, "8"),
        ({"id": 0}, "0"),
        ({"username": None, "get_user_id": lambda: None, "id": 8}, "8"),
        ({"username": "", "id": 8}, "8"),
    ],
    ids=["username", "get_user_id", "id", "id of zero", "unset names", "empty name"],
)
def test_first_attribute_that_is_set_names_a_user(attributes: dict[str, Any], expected: str) -> None:
    assert expected == username_of(SimpleNamespace(**attributes))


def test_user_without_a_name_is_an_error() -> None:
    """Counted under the client's key, such a user would go unnoticed."""
    with pytest.raises(TypeError, match=r"SimpleNamespace has no username, get_user_id\(\) or id"):
        username_of(SimpleNamespace(email="alice@example.com"))


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        (SimpleNamespace(client_id="app", user=SimpleNamespace(username="alice")), Caller("app", "alice")),
        (SimpleNamespace(client_id="app", user=None, user_id=7), Caller("app", "7")),
        (SimpleNamespace(client_id="app", username="bob", user_id=7), Caller("app", "bob")),
        (SimpleNamespace(client_id="app", username=""), Caller("app", None)),
        ({"client_id": "app", "sub": "alice"}, Caller("app", "alice")),
        ({"azp": "app", "sub": "app"}, Caller("app", None)),
        ({"sub": "alice"}, None),
        (SimpleNamespace(), None),
    ],
    ids=["user", "user id", "username", "no user", "JWT of a user", "JWT of a client", "JWT of nobody", "nothing"],
)
def test_owner_is_read_from_stored_tokens_and_claims(token: Any, expected: Caller | None) -> None:
    """Without a client, a token has no owner."""
    assert expected == caller_of_token(token)
