"""
Posting to a webhook.
"""

import hashlib
import hmac
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from oauth_ratelimit.demo.mongod import free_port
from oauth_ratelimit.observe.webhook import Webhook, WebhookError, signature
from tests.docs.blocks import ROOT, the_block
from tests.observe.hook import Hook, listening

SECRET = "not much of a secret"
MESSAGE = {"client_id": "app", "text": "zu viel: Ä\u2028"}
NOW_S = 2_000_000_000.7


@pytest.fixture
def hook() -> Iterator[Hook]:
    """
    A webhook that takes everything.
    """
    with listening() as hook:
        yield hook


def post(url: str, *, secret: str | None = SECRET, timeout_s: float = 5.0) -> None:
    """
    Send the message.
    """
    Webhook(url, secret=secret, timeout_s=timeout_s, agent="oauth_ratelimit/1").post(MESSAGE, key="k-1", now_s=NOW_S)


def test_message(hook: Hook) -> None:
    """
    A message arrives as JSON, with the key that tells a repetition and the signature of its body.
    """
    post(hook.url)

    [message] = hook.taken
    assert MESSAGE == message.json
    digest = hmac.new(SECRET.encode(), b"2000000000." + message.body, hashlib.sha256).hexdigest()
    assert {
        "content-type": "application/json",
        "user-agent": "oauth_ratelimit/1",
        "idempotency-key": "k-1",
        "oauth-ratelimit-signature": f"t=2000000000,v1={digest}",
    }.items() <= message.headers.items()


@pytest.mark.parametrize(
    ("secret", "header", "age_s", "expected"),
    [
        (SECRET, None, 0, True),
        ("another secret", None, 0, False),
        (SECRET, None, 400, False),
        (SECRET, "t=1,v1=00", 0, False),
    ],
    ids=["genuine", "other secret", "old", "forged"],
)
def test_receiver_of_the_documentation(secret: str, header: str | None, age_s: int, expected: bool) -> None:
    """
    What the documentation tells receivers to do takes our messages and nobody else's.
    """
    receiver: dict[str, Any] = {}
    exec(the_block(ROOT / "docs" / "events.md", "python", "is_genuine"), receiver)
    body = json.dumps(MESSAGE).encode()
    header = header or signature(SECRET, body, at_s=int(time.time()) - age_s)

    assert expected is receiver["is_genuine"](secret, header, body)


def test_message_without_a_secret(hook: Hook) -> None:
    """
    Without a secret there is no signature, rather than one that anybody can make.
    """
    post(hook.url, secret=None)

    assert "oauth-ratelimit-signature" not in hook.taken[0].headers


@pytest.mark.parametrize(
    ("status", "is_final"),
    [(400, True), (413, True), (422, True), (401, False), (404, False), (429, False), (500, False)],
)
def test_refused(hook: Hook, status: int, is_final: bool) -> None:
    """
    A refusal that is about the message is final; one about the webhook or our rights may pass.
    """
    hook.answers = [status]
    with pytest.raises(WebhookError, match=f"^status {status}$") as caught:
        post(hook.url)

    assert is_final == caught.value.is_final


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirect(hook: Hook, status: int) -> None:
    """
    Nobody is followed to another address.
    """
    hook.answers = [status]
    with pytest.raises(WebhookError, match=f"redirects are not followed: status {status}") as caught:
        post(hook.url)

    assert (1, False) == (len(hook.received), caught.value.is_final)


def test_connection_that_is_cut(hook: Hook) -> None:
    """
    No answer is a failure that may pass.
    """
    hook.answers = [0]
    with pytest.raises(WebhookError, match="RemoteDisconnected") as caught:
        post(hook.url)

    assert not caught.value.is_final


def test_nobody_listens() -> None:
    """
    So is nobody there; the address, which may hold a secret, is not in the error.
    """
    with pytest.raises(WebhookError, match=r"^ConnectionRefusedError$"):
        post(f"http://127.0.0.1:{free_port()}/secret")


def test_webhook_that_hangs(hook: Hook) -> None:
    """
    A webhook that takes the message and never answers costs the timeout.
    """
    hook.pause = threading.Event()
    with pytest.raises(WebhookError, match="TimeoutError"):
        post(hook.url, timeout_s=0.1)


def test_something_else_than_http() -> None:
    """
    What does not speak HTTP is an error like any other.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:

        def babble() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(b"220 mail.example ESMTP\r\n")

        thread = threading.Thread(target=babble)
        thread.start()
        with pytest.raises(WebhookError, match=r"BadStatusLine|ConnectionResetError"):
            post(f"http://127.0.0.1:{server.getsockname()[1]}/")
        thread.join()


def test_proxy_of_the_environment(hook: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    What is for this machine does not travel through a proxy.
    """
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    post(hook.url)

    assert 1 == len(hook.taken)
