"""Who may use the demo's admin page: whoever sits at this machine."""

from urllib.parse import urlsplit

from flask import Flask, request

from oauth_ratelimit.admin import admin_blueprint

LOOPBACK = ("127.0.0.1", "::1")
OPERATOR = "demo operator"


def operator() -> str | None:
    """Return the demo's operator if the request comes from this machine, by its own name.

    The name matters, too: a page from elsewhere can have its host name lead to 127.0.0.1, and its scripts would then
    be let in as being of this site.
    """
    is_named_so = urlsplit(f"//{request.host}").hostname in (*LOOPBACK, "localhost")
    return OPERATOR if request.remote_addr in LOOPBACK and is_named_so else None


def add_admin_page(app: Flask, secret_key: str) -> None:
    """Give an application the admin page.

    Args:
        app: A protected application.
        secret_key: Signs what changes carry; the same for all instances.
    """
    app.secret_key = secret_key
    app.register_blueprint(admin_blueprint(operator, "/ratelimit"))
