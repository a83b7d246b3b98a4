"""
Sending JSON to a webhook: signed, within a time, without following it anywhere.
"""

import hashlib
import hmac
import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from urllib.parse import urlsplit

SIGNATURE = "OAuth-RateLimit-Signature"

# About this message, and not about the webhook or our rights there: no later attempt will be taken.
ABOUT_THE_MESSAGE = frozenset({400, 413, 422})


class WebhookError(Exception):
    """
    A message was not taken.

    Attributes:
        is_final: Whether the receiver will never take this message.
    """

    def __init__(self, reason: str, *, is_final: bool = False) -> None:
        super().__init__(reason)
        self.is_final = is_final


class Webhook:
    """
    Where messages are posted to.

    Args:
        url: The address, never in an error.

        secret: The key of the signature, None for no signature.

        timeout_s: How long it may hang in any one step.

        agent: What we call ourselves.
    """

    def __init__(self, url: str, *, secret: str | None, timeout_s: float, agent: str) -> None:
        self._url = url
        self._secret = secret
        self._timeout_s = timeout_s
        self._agent = agent
        self._opener = _opener(is_encrypted=urlsplit(url).scheme == "https")

    def post(self, message: Mapping[str, object], *, key: str, now_s: float) -> None:
        """
        Send a message, once.

        Args:
            message: What is sent.

            key: The same for every attempt to send this message.

            now_s: The time, seconds since the epoch.

        Raises:
            WebhookError: It was not taken, or nobody knows.
        """
        body = json.dumps(message).encode()
        headers = {"Content-Type": "application/json", "User-Agent": self._agent, "Idempotency-Key": key}
        if self._secret is not None:
            headers[SIGNATURE] = signature(self._secret, body, at_s=int(now_s))
        request = urllib.request.Request(self._url, data=body, headers=headers, method="POST")
        try:
            self._opener.open(request, timeout=self._timeout_s).close()
        except urllib.error.HTTPError as exc:
            exc.close()
            kind = "redirects are not followed: " if 300 <= exc.code < 400 else ""
            raise WebhookError(f"{kind}status {exc.code}", is_final=exc.code in ABOUT_THE_MESSAGE) from None
        except (OSError, http.client.HTTPException, ValueError) as exc:
            reason = getattr(exc, "reason", exc)  # URLError wraps what went wrong
            raise WebhookError(f"{type(reason).__name__}") from None


def signature(secret: str, body: bytes, *, at_s: int) -> str:
    """
    Return the value of the signature header: the time, and an HMAC-SHA256 of time, full stop and body.
    """
    digest = hmac.new(secret.encode(), b"%d." % at_s + body, hashlib.sha256).hexdigest()
    return f"t={at_s},v1={digest}"


def _opener(*, is_encrypted: bool) -> urllib.request.OpenerDirector:
    """
    Return what opens addresses, without a handler for redirects. Goes through the environment's proxy with https only:
    plain http is for this machine.
    """
    opener = urllib.request.OpenerDirector()
    handlers: list[urllib.request.BaseHandler] = [
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
    ]
    if is_encrypted:
        handlers += [urllib.request.ProxyHandler(), urllib.request.HTTPSHandler()]
    else:
        handlers += [urllib.request.HTTPHandler()]
    for handler in handlers:
        opener.add_handler(handler)
    return opener
