"""The demo server's database: one SQLite file that any number of processes share."""

import base64
import json
import sqlite3
import time
import weakref
from collections.abc import Iterable
from contextlib import closing
from dataclasses import asdict, astuple
from os import PathLike
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from flask import Flask, current_app, g

from testbed.oauth_server.models import AuthorizationCode, Client, DeviceCode, Token, User

LOCK_TIMEOUT_S = 30  # processes wait for each other to write
EXTENSION = "demo_database"  # key in app.extensions and attribute of flask.g

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

SCHEMA = """
CREATE TABLE IF NOT EXISTS clients (client_id TEXT PRIMARY KEY, document TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS users (username TEXT PRIMARY KEY, password TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS signing_keys (name TEXT PRIMARY KEY, jwk TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS codes (
    code TEXT PRIMARY KEY, client_id TEXT NOT NULL, username TEXT NOT NULL, redirect_uri TEXT, scope TEXT NOT NULL,
    nonce TEXT, code_challenge TEXT, code_challenge_method TEXT, issued_at_s INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS device_codes (
    device_code TEXT PRIMARY KEY, user_code TEXT NOT NULL UNIQUE, client_id TEXT NOT NULL, scope TEXT NOT NULL,
    expires_at_s INTEGER NOT NULL, polled_at_s REAL NOT NULL, username TEXT);
CREATE TABLE IF NOT EXISTS tokens (
    access_token TEXT PRIMARY KEY, refresh_token TEXT UNIQUE, client_id TEXT NOT NULL, username TEXT,
    scope TEXT NOT NULL, issued_at_s INTEGER NOT NULL, expires_in_s INTEGER NOT NULL, revoked INTEGER NOT NULL);
"""


class Database:
    """Reads and writes the models over one connection.

    ``redeem_…`` and ``revoke`` return True for exactly one caller, however many processes try at the same time.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def create_tables(self) -> None:
        self.connection.execute("PRAGMA journal_mode = WAL")  # readers and the writer do not block each other
        self.connection.executescript(SCHEMA)

    def put_clients(self, clients: Iterable[Client]) -> None:
        rows = [(client.client_id, json.dumps(asdict(client))) for client in clients]
        self._put_many("clients", rows, columns=2)

    def put_users(self, users: Iterable[User]) -> None:
        self._put_many("users", [astuple(user) for user in users], columns=2)

    def client(self, client_id: str) -> Client | None:
        row = self._row("SELECT document FROM clients WHERE client_id = ?", client_id)
        if row is None:
            return None
        document: dict[str, Any] = json.loads(row[0])
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in document.items()
        }
        return Client(**fields)

    def has_clients(self) -> bool:
        return self._row("SELECT 1 FROM clients") is not None

    def user(self, username: str | None) -> User | None:
        row = self._row("SELECT username, password FROM users WHERE username = ?", username)
        return None if row is None else User(*row)

    def signing_key(self) -> dict[str, str]:
        """Return the private JSON Web Key that signs ID tokens."""
        row = self._row("SELECT jwk FROM signing_keys WHERE name = 'id_token'")
        assert row is not None, "the database is not seeded"
        key: dict[str, str] = json.loads(row[0])
        return key

    def add_signing_key(self, jwk: dict[str, str]) -> None:
        """Store the key unless there is one, so that all processes sign with the first."""
        self._write("INSERT OR IGNORE INTO signing_keys VALUES ('id_token', ?)", json.dumps(jwk))

    def add_code(self, code: AuthorizationCode) -> None:
        self._insert("codes", astuple(code))

    def code(self, code: str, client_id: str) -> AuthorizationCode | None:
        row = self._row("SELECT * FROM codes WHERE code = ? AND client_id = ?", code, client_id)
        return None if row is None else AuthorizationCode(*row)

    def has_nonce(self, nonce: str, client_id: str) -> bool:
        return self._row("SELECT 1 FROM codes WHERE nonce = ? AND client_id = ?", nonce, client_id) is not None

    def redeem_code(self, code: AuthorizationCode) -> bool:
        return self._write("DELETE FROM codes WHERE code = ?", code.code)

    def add_device_code(self, device_code: DeviceCode) -> None:
        self._insert("device_codes", astuple(device_code))

    def device_code(self, device_code: str) -> DeviceCode | None:
        row = self._row("SELECT * FROM device_codes WHERE device_code = ?", device_code)
        return None if row is None else DeviceCode(*row)

    def approver(self, user_code: str) -> User | None:
        row = self._row("SELECT username FROM device_codes WHERE user_code = ?", user_code)
        return None if row is None else self.user(row[0])

    def approve_device(self, user_code: str, user: User) -> bool:
        return self._write("UPDATE device_codes SET username = ? WHERE user_code = ?", user.username, user_code)

    def record_poll(self, device_code: DeviceCode) -> None:
        self._write(
            "UPDATE device_codes SET polled_at_s = ? WHERE device_code = ?", time.time(), device_code.device_code
        )

    def redeem_device_code(self, device_code: DeviceCode) -> bool:
        return self._write("DELETE FROM device_codes WHERE device_code = ?", device_code.device_code)

    def add_token(self, token: Token) -> None:
        self._insert("tokens", astuple(token))

    def token_by_access(self, access_token: str) -> Token | None:
        row = self._row("SELECT * FROM tokens WHERE access_token = ?", access_token)
        return None if row is None else Token(*row)

    def token_by_refresh(self, refresh_token: str) -> Token | None:
        row = self._row("SELECT * FROM tokens WHERE refresh_token = ?", refresh_token)
        return None if row is None else Token(*row)

    def revoke(self, token: Token) -> bool:
        return self._write("UPDATE tokens SET revoked = 1 WHERE access_token = ? AND revoked = 0", token.access_token)

    def _row(self, statement: str, *values: Any) -> tuple[Any, ...] | None:
        row: tuple[Any, ...] | None = self.connection.execute(statement, values).fetchone()
        return row

    def _write(self, statement: str, *values: Any) -> bool:
        return self.connection.execute(statement, values).rowcount > 0

    def _insert(self, table: str, values: tuple[Any, ...]) -> None:
        self._write(f"INSERT INTO {table} VALUES ({', '.join('?' * len(values))})", *values)

    def _put_many(self, table: str, rows: list[tuple[Any, ...]], *, columns: int) -> None:
        self.connection.execute("BEGIN IMMEDIATE")  # one transaction: thousands of rows, one write to the disk
        with self.connection:
            statement = f"INSERT OR REPLACE INTO {table} VALUES ({', '.join('?' * columns)})"
            self.connection.executemany(statement, rows)


def connect(database_path: str | PathLike[str]) -> sqlite3.Connection:
    """Open the file in autocommit mode, so that no request holds the write lock longer than a statement."""
    connection = sqlite3.connect(
        database_path,
        timeout=LOCK_TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,  # one thread after the other, see ConnectionPool
    )
    connection.execute("PRAGMA synchronous = NORMAL")  # with a write-ahead log: no disk flush per token
    return connection


def seed(
    database_path: str | PathLike[str], *, clients: Iterable[Client] = DEMO_CLIENTS, users: Iterable[User] = DEMO_USERS
) -> None:
    """Create missing tables, then add or replace clients and users. Several processes may do so at the same time.

    Args:
        database_path: The SQLite file; its directory must exist.
        clients: The clients to add; one with the same id is replaced.
        users: The users to add or replace.
    """
    with closing(connect(database_path)) as connection:
        stored = Database(connection)
        stored.create_tables()
        stored.add_signing_key(_new_signing_key())
        stored.put_users(users)
        stored.put_clients(clients)  # last, because seed_if_empty takes clients as a sign that the rest is there


def seed_if_empty(database_path: str | PathLike[str]) -> None:
    """Add the demo's clients and users unless the file holds clients."""
    with closing(connect(database_path)) as connection:
        stored = Database(connection)
        stored.create_tables()
        if stored.has_clients():
            return
    seed(database_path)


class ConnectionPool:
    """Idle connections of one process, because opening one costs more than a token request's queries.

    It opens none by itself, so a server may fork after it was made.
    """

    def __init__(self, database_path: str | PathLike[str]) -> None:
        self._database_path = database_path
        self._idle: list[sqlite3.Connection] = []

    def acquire(self) -> sqlite3.Connection:
        try:
            return self._idle.pop()
        except IndexError:
            return connect(self._database_path)

    def release(self, connection: sqlite3.Connection) -> None:
        self._idle.append(connection)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()


def init_app(app: Flask, database_path: str | PathLike[str]) -> None:
    """Give an application its database."""
    pool = ConnectionPool(database_path)
    weakref.finalize(app, pool.close)
    app.extensions[EXTENSION] = pool
    app.teardown_appcontext(_release)


def database() -> Database:
    """Return the database, over a connection that belongs to this request."""
    if EXTENSION not in g:
        setattr(g, EXTENSION, Database(current_app.extensions[EXTENSION].acquire()))
    current: Database = getattr(g, EXTENSION)
    return current


def _release(_error: BaseException | None) -> None:
    used: Database | None = g.pop(EXTENSION, None)
    if used is not None:
        current_app.extensions[EXTENSION].release(used.connection)


def _new_signing_key() -> dict[str, str]:
    """Return a new P-256 key as a JSON Web Key, a form that every release of Authlib signs with."""
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
