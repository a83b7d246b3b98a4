"""Client ids and user names that want to be more than names."""

import io
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from oauth_ratelimit import Limiter, load_config
from oauth_ratelimit.core.key import logged_name, storable_name
from oauth_ratelimit.errors import RateLimitError
from oauth_ratelimit.flask_authlib.responses import RateLimited, quota_headers
from tests.support.helpers import Clock
from tests.support.hostile_names import CONTROLS, NAMES

each_name = pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)


@pytest.fixture
def limiters(mongo_uri: str, clock: Clock) -> Iterator[tuple[Limiter, Limiter]]:
    """Two instances with a limit of two an hour. Their clock is far ahead, so that MongoDB removes nothing."""
    rates = ["2/hour"]
    config = {"mode": "enforce", "store": {"uri": mongo_uri}, "limits": {"client": rates, "user": rates}}
    one, other = (Limiter(load_config(config), clock=clock) for _ in range(2))
    yield one, other
    one.close()
    other.close()


@pytest.fixture
def lines(request: pytest.FixtureRequest) -> Iterator[io.BytesIO]:
    """Lines that structlog writes, with the renderer that the test is parametrised with, to a UTF-8 stream."""
    raw = io.BytesIO()
    text = io.TextIOWrapper(raw, "utf-8", write_through=True, newline="")
    before = structlog.get_config()
    structlog.configure(
        processors=[structlog.processors.add_log_level, request.param],
        logger_factory=structlog.PrintLoggerFactory(text),
        cache_logger_on_first_use=False,
    )
    yield raw
    structlog.configure(**before)
    text.detach()


RENDERERS: dict[str, Callable[..., Any]] = {
    "console": structlog.dev.ConsoleRenderer(colors=False),
    "json": structlog.processors.JSONRenderer(ensure_ascii=False),
    "key value": structlog.processors.KeyValueRenderer(),
    "logfmt": structlog.processors.LogfmtRenderer(),
}


def logged_denial(lines: io.BytesIO, clock: Clock, name: str) -> str:
    """Have a request denied, and return what is logged."""
    with closing(Limiter(load_config({"mode": "enforce", "limits": {"user": ["1/hour"]}}), clock=clock)) as limiter:
        for _ in range(2):
            limiter.check(name, name)
    return lines.getvalue().decode("utf-8")


@each_name
def test_any_text_is_a_key_of_its_own(limiters: tuple[Limiter, Limiter], documents: Any, name: str) -> None:
    """As client, as user and as both. As an endpoint it is of no harm."""
    one, other = limiters
    keys = [(name, None), (name, name), ("app", name), (name, "user")]
    for key in keys:
        one.check(*key)
        one.check(*key)
    one.check("app", endpoint=name)
    assert None is one.sync().error
    for key in keys:
        other.peek(*key)
    assert None is other.sync().error

    for key in keys:
        assert not other.check(*key).allowed
    assert other.check("app", "user").allowed
    assert other.check(f"{name}'", name).allowed
    identities = [found["_id"] for found in documents.find()]
    stored = storable_name(name)
    expected = [(stored, None), (stored, stored), ("app", stored), (stored, "user")]
    assert sorted(map(repr, expected)) == sorted(repr((found["clientId"], found["username"])) for found in identities)


@each_name
@pytest.mark.parametrize("lines", RENDERERS.values(), ids=RENDERERS, indirect=True)
def test_denial_is_one_line_of_the_log(lines: io.BytesIO, clock: Clock, name: str) -> None:
    """Nothing in it moves a cursor or turns text around."""
    text = logged_denial(lines, clock, name)
    assert 1 == text.count("request_denied")
    assert text.endswith("\n")
    assert set() == CONTROLS & set(text[:-1])
    assert len(text) < 20_000


FORGED = ("a forged=x", 'a" forged="x', 'a\\" forged=x', "a\nforged=x", "a\tforged=x", "a' forged='x", "a\\nforged=x")


@pytest.mark.parametrize("name", FORGED, ids=ascii)
@pytest.mark.parametrize("lines", RENDERERS.values(), ids=RENDERERS, indirect=True)
def test_no_part_of_a_name_looks_like_another_field(lines: io.BytesIO, clock: Clock, name: str) -> None:
    """Readers of the log, persons and programs."""
    text = logged_denial(lines, clock, name)
    assert 2 == text.count("forged")
    assert "forged=" not in text
    assert 1 == text.count("\n")


def test_logged_name_tells_names_apart() -> None:
    """A name that holds an escape is another one than what the escape stands for."""
    names = ["a=b", "a\\x3db", "a\\\\x3db", "a\nb", "a\\nb", "plain"]
    shown = list(map(logged_name, names))

    assert len(names) == len(set(shown))
    assert ["a\\x3db", "plain"] == [shown[0], shown[-1]]


def test_damaged_document_is_logged_with_escaped_names(mongo_uri: str, documents: Any, clock: Clock) -> None:
    name = NAMES["terminal escape"]
    config = {"mode": "enforce", "store": {"uri": mongo_uri}, "limits": {"user": ["1/hour"]}}
    limiter = Limiter(load_config(config), clock=clock)
    limiter.check(name, name)
    limiter.sync()
    documents.update_many({}, {"$set": {"version": "x"}})
    with capture_logs() as logs:
        limiter.check(name, name)
        limiter.sync()
    limiter.close()

    (complaint,) = (entry for entry in logs if entry["event"] == "document_malformed")
    assert set() == CONTROLS & set(complaint["client_id"] + complaint["username"])


@each_name
def test_answer_repeats_no_name(clock: Clock, name: str) -> None:
    """Headers and body are ASCII, each in one line."""
    settings = load_config({"mode": "enforce", "limits": {"user": ["1/hour"]}})
    limiter = Limiter(settings, clock=clock)
    limiter.check(name, name)
    decision = limiter.check(name, name)
    status, body, headers = RateLimited(decision, settings.denial)()
    limiter.close()

    assert 429 == status
    said = [json.dumps(body), *(part for header in (*headers, *quota_headers(decision, ["ietf"])) for part in header)]
    assert all(text.isascii() and text.isprintable() for text in said)
    assert len(name) < 6 or all(name not in text for text in said)


@each_name
def test_any_text_in_the_configuration_is_accepted_or_refused_in_one_line(name: str) -> None:
    """As the name of a client or a limit."""
    for values in ({"trusted_clients": [name]}, {"clients": {name: {"mode": "enforce"}}}, {"limits": {"user": [name]}}):
        try:
            load_config(values)
        except RateLimitError as exc:
            assert 1 == len(str(exc).splitlines())


@pytest.mark.parametrize("length", (512, 513, 1024), ids=str)
def test_configuration_of_a_long_client_id_applies_after_a_reload(clock: Clock, length: int) -> None:
    client_id = "x" * (length - 1) + "y"
    limits = {"limits": {"client": ["1/hour"]}}
    old = {"mode": "enforce", "trusted_clients": [client_id], "endpoints": {"revocation": limits}, **limits}
    new = {**old, "trusted_clients": [], "clients": {client_id: {"limits": {"client": ["7/hour"]}}}}
    with closing(Limiter(load_config(old), clock=clock)) as limiter:
        limiter.check(client_id)
        limiter.check(client_id, endpoint="revocation")

        limiter.reconfigure(load_config(old))
        trusted = [limiter.peek(client_id, endpoint=endpoint).trusted for endpoint in ("token", "revocation")]
        limiter.reconfigure(load_config(new))

        assert [True, True] == trusted
        assert 7 == limiter.peek(client_id).limit
