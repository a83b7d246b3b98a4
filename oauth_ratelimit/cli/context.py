"""What a command works with: the configuration of the application or of a file, and the database it names."""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import click
from flask.cli import ScriptInfo

from oauth_ratelimit.config import Settings, load_config
from oauth_ratelimit.core.policy import Mode
from oauth_ratelimit.flask_authlib.extension import MODE_KEY, configured_settings
from oauth_ratelimit.flask_authlib.request_state import EXTENSION
from oauth_ratelimit.operations.context import OperatorContext
from oauth_ratelimit.store.factory import open_connection
from oauth_ratelimit.store.mongo.client import Connection

Function = TypeVar("Function", bound=Callable[..., Any])


class CliContext(OperatorContext):
    """One run of the command line. Everything is looked up when it is first needed.

    Args:
        config_path: A configuration file; None takes the application's configuration.
        mongo_uri: Instead of the configuration's ``store.uri``.
        script: Flask's way to the application; None outside of Flask.
    """

    def __init__(self, config_path: str | None, mongo_uri: str | None, script: ScriptInfo | None) -> None:
        super().__init__(self._settings, self._open, clock=time.time)
        self._config_path = config_path
        self._mongo_uri = mongo_uri
        self._script = script

    def _settings(self) -> Settings:
        if self._config_path is not None:
            return load_config(self._config_path, uri=self._mongo_uri)
        if self._script is None:
            raise click.UsageError("name a configuration file with --config")
        app = self._script.load_app()
        gate = app.extensions.get(EXTENSION)
        if gate is None:
            raise click.UsageError("this application has no OAuthRateLimit; name a configuration file with --config")
        # The emergency switch of this environment says nothing about the instances', which is what commands are about.
        settings: Settings = configured_settings(app.config) if self.is_switched_off else gate.settings
        if self._mongo_uri is None:
            return settings
        return replace(settings, store=replace(settings.store, uri=self._mongo_uri))

    def _open(self) -> Connection:
        connection = open_connection(self.settings.store)
        if connection is None:
            raise click.UsageError("counters are not shared: the configuration has no store.uri")
        click.get_current_context().call_on_close(connection.close)
        return connection

    @property
    def servers(self) -> str | None:
        """The host and port of MongoDB; None if no connection was named yet."""
        connection: Connection | None = self.__dict__.get("connection")
        return None if connection is None else connection.servers

    @property
    def is_switched_off(self) -> bool:
        """Whether the environment of this command has the emergency switch pulled."""
        return os.environ.get(MODE_KEY, "").strip().lower() == Mode.OFF.value


pass_context = click.make_pass_decorator(CliContext)


def json_option(command: Function) -> Function:
    """Add ``--json`` to a command."""
    option = click.option("--json", "as_json", is_flag=True, help="Print JSON in ASCII, for programs.")
    return option(command)


def format_of(form: str | None, *, as_json: bool, default: str) -> str:
    """Return the format that ``--format`` and ``--json``, its short way to JSON, ask for together."""
    if as_json and form not in (None, "json"):
        raise click.UsageError("name either --json or --format")
    return "json" if as_json else form or default
