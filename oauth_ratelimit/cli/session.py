"""
What a command works with: the configuration of the application or of a file, and the database it names.
"""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

import click
from flask.cli import ScriptInfo

from oauth_ratelimit.config import Settings, load_config
from oauth_ratelimit.core.layers import Layers
from oauth_ratelimit.core.overrides import Override, in_force, overridden
from oauth_ratelimit.core.policy import PolicySet
from oauth_ratelimit.edge.request import EXTENSION
from oauth_ratelimit.store.connection import Connection
from oauth_ratelimit.store.documents import Documents
from oauth_ratelimit.store.heartbeats import HeartbeatStore
from oauth_ratelimit.store.overrides import OverrideStore
from oauth_ratelimit.wiring import open_connection

Function = TypeVar("Function", bound=Callable[..., Any])


class Session:
    """
    One run of the command line. Everything is looked up when it is first needed.

    Args:
        config_path: A configuration file; None takes the application's configuration.

        mongo_uri: Instead of the configuration's ``store.uri``.

        script: Flask's way to the application; None outside of Flask.
    """

    def __init__(self, config_path: str | None, mongo_uri: str | None, script: ScriptInfo | None) -> None:
        self._config_path = config_path
        self._mongo_uri = mongo_uri
        self._script = script
        self.now_s = time.time()

    @cached_property
    def settings(self) -> Settings:
        """
        The configuration, without overrides.
        """
        if self._config_path is not None:
            return load_config(self._config_path, uri=self._mongo_uri)
        if self._script is None:
            raise click.UsageError("name a configuration file with --config")
        gate = self._script.load_app().extensions.get(EXTENSION)
        if gate is None:
            raise click.UsageError("this application has no OAuthRateLimit; name a configuration file with --config")
        settings: Settings = gate.settings
        if self._mongo_uri is None:
            return settings
        return replace(settings, store=replace(settings.store, uri=self._mongo_uri))

    @cached_property
    def connection(self) -> Connection:
        """
        The database that counters are shared through.
        """
        connection = open_connection(self.settings.store)
        if connection is None:
            raise click.UsageError("counters are not shared: the configuration has no store.uri")
        click.get_current_context().call_on_close(connection.close)
        return connection

    @cached_property
    def documents(self) -> Documents:
        """
        The counters.
        """
        return Documents(self.connection, collection=self.settings.store.collection)

    @cached_property
    def override_store(self) -> OverrideStore:
        """
        Where overrides are.
        """
        return OverrideStore(self.connection)

    @cached_property
    def heartbeats(self) -> HeartbeatStore:
        """
        Where instances tell of themselves.
        """
        return HeartbeatStore(self.connection)

    @cached_property
    def overrides(self) -> tuple[Override, ...]:
        """
        The overrides in force.
        """
        return in_force(self.override_store.read(), self.now_s)

    @cached_property
    def policies(self) -> PolicySet:
        """
        What instances go by: the configuration with the overrides on top.
        """
        return overridden(self.settings.policies, self.overrides)

    @cached_property
    def layers(self) -> Layers:
        """
        Where all that comes from.
        """
        return Layers(self.settings.policies, self.overrides)

    def refresh(self) -> None:
        """
        Look at the clock and at the overrides again, for a command that goes on.
        """
        self.now_s = time.time()
        for name in ("overrides", "policies", "layers"):
            self.__dict__.pop(name, None)

    @property
    def is_switched_off(self) -> bool:
        """
        Whether the environment of this command has the emergency switch pulled.
        """
        return os.environ.get("OAUTH_RATELIMIT_MODE", "").strip().lower() == "off"


pass_session = click.make_pass_decorator(Session)


def json_option(command: Function) -> Function:
    """
    Add ``--json`` to a command.
    """
    option = click.option("--json", "as_json", is_flag=True, help="Print JSON in ASCII, for programs.")
    return option(command)
