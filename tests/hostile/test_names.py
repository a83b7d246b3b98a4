"""Client ids and user names that want to be more than names."""

import io
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
import structlog
from click.testing import CliRunner
from pymongo import MongoClient
from structlog.testing import capture_logs

from oauth_ratelimit import Limiter, load_config
from oauth_ratelimit.cli import command
from oauth_ratelimit.core.key import storable_name, visible_name
from oauth_ratelimit.errors import RateLimitError
from oauth_ratelimit.flask_authlib.responses import RateLimited, quota_headers
from oauth_ratelimit.store.mongo.client import Connection
from oauth_ratelimit.store.mongo.inspect import CounterDocuments
from tests.support.helpers import Clock

NAMES = {
    "nul": "a\0b",
    "dollar": "$where",
    "dot": "a.b..c.",
    "operator": '{"$gt": ""}',
    "lone surrogate": "a\ud800b",
    "surrogates in wrong order": "\udc00\ud800",
    "line break": "a\r\nRetry-After: 0\r\n\r\nb",
    "right to left": "\u202egnp.exe",
    "isolates": "\u2066a\u2069",
    "terminal escape": "\x1b[2J\x1b[31mred\x07",
    "8-bit escape": "\x9b31mred",
    "line separators": "a\u2028b\u2029c\x85d",
    "zero width": "ad\u200bmin",
    "expanding": "\ufdfa" * 100,
    "expanding, long": "\ufdfa" * 100_000,
    "megabytes": "x" * 5_000_000,
    "markup": "<script>alert(1)</script>",
    "formula": "=HYPERLINK(A1)",
    "full-width formula": "\uff1d1+1",
    "template": "{{7*7}} %s %(x)s {0}",
    "none in words": "None",
    "empty": "",
    "blank": " ",
    "astral": "\U0001f600" * 300,
    "non-character": "\uffff",
}
CONTROLS = {*map(chr, range(32)), "\x7f", *map(chr, range(0x80, 0xA0)), *"\u2028\u2029\u202e\u2066\u2069\u200b"}

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
    """What structlog writes, with the renderer that the test is parametrised with, to a UTF-8 stream."""
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


@each_name
def test_name_is_a_key_of_its_own(limiters: tuple[Limiter, Limiter], mongo_uri: str, name: str) -> None:
    """Any text is counted, shared and found as itself: as client, as user and as both."""
    one, other = limiters
    keys = [(name, None), (name, name), ("app", name), (name, "user")]
    for key in keys:
        one.check(*key)
        one.check(*key)
    assert None is one.sync().error
    for key in keys:
        other.peek(*key)
    assert None is other.sync().error

    for key in keys:
        assert not other.check(*key).allowed
    assert other.check("app", "user").allowed
    assert other.check(f"{name}'", name).allowed
    client: MongoClient[dict[str, Any]] = MongoClient(mongo_uri)
    with client:
        identities = [found["_id"] for found in client.get_default_database()["ratelimits"].find()]
    stored = storable_name(name)
    expected = [(stored, None), (stored, stored), ("app", stored), (stored, "user")]
    assert sorted(map(repr, expected)) == sorted(repr((found["clientId"], found["username"])) for found in identities)


@each_name
def test_name_as_an_endpoint(limiters: tuple[Limiter, Limiter], name: str) -> None:
    """An application may call its endpoints anything: the cycle goes on."""
    limiters[0].check("app", endpoint=name)

    assert None is limiters[0].sync().error


@each_name
@pytest.mark.parametrize("lines", RENDERERS.values(), ids=RENDERERS, indirect=True)
def test_name_in_the_log(lines: io.BytesIO, clock: Clock, name: str) -> None:
    """A denial is one line, whatever the names and the renderer; nothing in it moves a cursor or turns text around."""
    limiter = Limiter(load_config({"mode": "enforce", "limits": {"user": ["1/hour"]}}), clock=clock)
    for _ in range(2):
        limiter.check(name, name)
    limiter.close()

    text = lines.getvalue().decode("utf-8")
    assert 1 == text.count("request_denied")
    assert text.endswith("\n")
    assert set() == CONTROLS & set(text[:-1])
    assert len(text) < 20_000


@each_name
def test_name_of_a_damaged_document_in_the_log(mongo_uri: str, clock: Clock, name: str) -> None:
    """A complaint about a document shows the names in it as denials do."""
    config = {"mode": "enforce", "store": {"uri": mongo_uri}, "limits": {"user": ["1/hour"]}}
    limiter = Limiter(load_config(config), clock=clock)
    limiter.check(name, name)
    limiter.sync()
    client: MongoClient[dict[str, Any]] = MongoClient(mongo_uri)
    with client:
        client.get_default_database()["ratelimits"].update_many({}, {"$set": {"version": "x"}})
    with capture_logs() as logs:
        limiter.check(name, name)
        limiter.sync()
    limiter.close()

    (complaint,) = (entry for entry in logs if entry["event"] == "document_malformed")
    assert set() == CONTROLS & set(complaint["client_id"] + complaint["username"])


@each_name
def test_name_in_the_answer(clock: Clock, name: str) -> None:
    """Neither the headers nor the body of a denial repeat a name, and both are ASCII in one line each."""
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
def test_name_on_the_command_line(limiters: tuple[Limiter, Limiter], mongo_uri: str, tmp_path: Any, name: str) -> None:
    """The listing of keys shows each name in one line without control characters, and as JSON in ASCII."""
    limiters[0].check(name, name)
    limiters[0].sync()
    path = tmp_path / "limits.yaml"
    path.write_text(
        json.dumps({"store": {"uri": mongo_uri}, "limits": {"user": ["2/hour"]}, "mode": "enforce"}), encoding="utf-8"
    )

    plain = CliRunner().invoke(command, ["--config", str(path), "top"], catch_exceptions=False)
    machine = CliRunner().invoke(command, ["--config", str(path), "top", "--json"], catch_exceptions=False)

    assert 0 == plain.exit_code == machine.exit_code
    assert set() == (CONTROLS - {"\n"}) & set(plain.output)
    assert machine.output.isascii()
    assert json.loads(machine.output)
    with closing(Connection(mongo_uri)) as connection:
        found = [key for key, _ in CounterDocuments(connection, collection="ratelimits").of_client(storable_name(name))]
    assert [(storable_name(name), storable_name(name))] == [key[:2] for key in found]


@each_name
def test_name_in_the_configuration(name: str) -> None:
    """As a client's name or pattern in the configuration any text is taken, or refused with an error of one line."""
    for values in ({"trusted_clients": [name]}, {"clients": {name: {"mode": "enforce"}}}, {"limits": {"user": [name]}}):
        try:
            load_config(values)
        except RateLimitError as exc:
            assert 1 == len(str(exc).splitlines())


@pytest.mark.parametrize("length", (512, 513, 1024), ids=str)
def test_long_client_id_after_a_reload(clock: Clock, length: int) -> None:
    """
    What the configuration says of a client with a long id holds before and after it is read again, at every endpoint.
    """
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


@each_name
def test_visible_name(name: str) -> None:
    """A printable name is shown as it is; another one in ASCII escapes where it is not."""
    shown = visible_name(storable_name(name))

    assert shown.isprintable()
    assert not name.isprintable() or shown == storable_name(name)
