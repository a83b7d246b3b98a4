"""Fills the demo server's database: clients, users and the key that signs ID tokens."""

import base64
from collections.abc import Iterable
from contextlib import closing
from os import PathLike

from cryptography.hazmat.primitives.asymmetric import ec

from demo.accounts import Accounts, connect
from demo.records import Client, User

WEB_SHOP = Client("web-shop", "web-shop-secret-of-the-demo-0123456789")
BATCH_JOBS = Client("batch-jobs", "batch-jobs-secret-of-the-demo-0123456789")
PARTNER_BANK = Client("partner-bank", "partner-bank-secret-of-the-demo-0123456789")
MOBILE_APP = Client("mobile-app")  # public: no secret

DEMO_CLIENTS = (WEB_SHOP, BATCH_JOBS, PARTNER_BANK, MOBILE_APP)
DEMO_USERS = tuple(
    User(name, f"{name}-password")
    for name in (
        *("alice", "bob", "carol", "dave", "erin", "frank", "grace"),
        *("heidi", "ivan", "judy", "kim", "lena", "mia", "nils"),
    )
)


def seed(
    database_path: str | PathLike[str], *, clients: Iterable[Client] = DEMO_CLIENTS, users: Iterable[User] = DEMO_USERS
) -> None:
    """Create the tables where they are missing, then add or replace clients and users.

    May run in several processes at the same time and any number of times.

    Args:
        database_path: The SQLite file; its directory must exist.
        clients: Added to those already there; one with the same id is replaced.
        users: The same.
    """
    with closing(connect(database_path)) as connection:
        accounts = Accounts(connection)
        accounts.create_tables()
        accounts.add_signing_key(_new_signing_key())
        accounts.put_users(users)
        accounts.put_clients(clients)  # last: clients in the file say that the rest is there


def seed_if_empty(database_path: str | PathLike[str]) -> None:
    """Add the demo's clients and users unless the file holds clients already.

    Of processes that start together on a new file, none goes on before everything is there.
    """
    with closing(connect(database_path)) as connection:
        accounts = Accounts(connection)
        accounts.create_tables()
        if accounts.has_clients():
            return
    seed(database_path)


def _new_signing_key() -> dict[str, str]:
    """Return a fresh P-256 key as a JSON Web Key, the one form that every release of Authlib signs with."""
    private = ec.generate_private_key(ec.SECP256R1()).private_numbers()
    public = private.public_numbers
    return {
        "kty": "EC",
        "crv": "P-256",
        "kid": "demo",
        "x": _base64url(public.x),
        "y": _base64url(public.y),
        "d": _base64url(private.private_value),
    }


def _base64url(number: int) -> str:
    return base64.urlsafe_b64encode(number.to_bytes(32, "big")).rstrip(b"=").decode()
