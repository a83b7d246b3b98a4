"""Arguments of a request, checked: a ``ValueError`` says what is allowed."""

import re
from collections.abc import Mapping, Sequence

from oauth_ratelimit.config.errors import show
from oauth_ratelimit.operations.changes import checked_client_id

Params = Mapping[str, str]
"""The arguments of a request."""

MAX_TIME_S = 10**11


def choice(params: Params, name: str, allowed: Sequence[str], default: str) -> str:
    value = params.get(name) or default
    if value not in allowed:
        raise ValueError(f"{name}: got {show(value)}, allowed: {', '.join(allowed)}")
    return value


def whole(params: Params, name: str, default: int, *, least: int = 0, most: int = MAX_TIME_S) -> int:
    text = params.get(name) or str(default)
    if not re.fullmatch("-?[0-9]{1,12}", text) or not least <= int(text) <= most:
        raise ValueError(f"{name}: got {show(text)}, allowed: a whole number from {least} to {most}")
    return int(text)


def named_client(params: Params) -> str:
    return checked_client_id(params.get("id", ""))


def client_or_all(params: Params) -> str | None:
    return named_client(params) if params.get("id") else None
