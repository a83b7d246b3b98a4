"""
Why a connection to MongoDB could not be made, and what to do about it, in words of our own.

The driver's message is only looked at: it names hosts and repeats what servers say.
"""

import re

_CODE = re.compile(r"\[SSL: ([A-Z0-9_]{1,60})\]")

_ADVICE = (
    (
        "certificate is not valid for",
        "the server's certificate is for another host; the connection string must name the one in the certificate",
    ),
    ("certificate has expired", "the server's certificate has expired"),
    (
        "CERTIFICATE_VERIFY_FAILED",
        "the server's certificate is not signed by an authority that is trusted here; "
        "name the authority's file as tlsCAFile in the connection string",
    ),
)
_CLOSED = (
    "the server closes new connections; if it asks for TLS, the connection string needs tls=true, "
    "and tlsCertificateKeyFile if it asks for a certificate"
)


def advice_on(message: str) -> str | None:
    """
    Return what to do about a failed connection, None if the driver's message does not tell.
    """
    for mark, advice in _ADVICE:
        if mark in message:
            return advice
    code = _CODE.search(message)
    if code is not None:
        return (
            f"the TLS handshake failed ({code[1]}); check that the server speaks TLS, "
            "and whether it asks for a certificate (tlsCertificateKeyFile)"
        )
    return _CLOSED if "connection closed" in message else None
