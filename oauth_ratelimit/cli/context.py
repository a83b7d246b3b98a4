"""Context of a command: the configuration of the application or of a file, and its database."""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import click
from flask.cli import ScriptInfo

from oauth_ratelimit.config import Settings, load_config
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.flask_authlib.app_config import MODE_KEY, configured_settings
from oauth_ratelimit.flask_authlib.app_limiter import EXTENSION
from oauth_ratelimit.operations.context import OperatorContext
from oauth_ratelimit.store.factory import Stores, open_stores

Function = TypeVar("Function", bound=Callable[..., Any])


class CliContext(OperatorContext):
    """Dependencies of one run of the command line.

    Args:
        config_path: A configuration file; None for the application's configuration.
        mongo_uri: Replaces ``store.uri`` of the configuration.
        script: Loads the Flask application; None outside of Flask.

    Attributes:
        config_path: The configuration file; None for the application's configuration.
    """

    def __init__(self, config_path: str | None, mongo_uri: str | None, script: ScriptInfo | None) -> None:
        super().__init__(self._load, self._open, clock=time.time)
        self.config_path = config_path
        self._mongo_uri = mongo_uri
        self._script = script

    def _load(self) -> Settings:
        if self.config_path is not None:
            return load_config(self.config_path, uri=self._mongo_uri)
        if self._script is None:
            raise click.UsageError("name a configuration file with --config")
        app = self._script.load_app()
        app_limiter = app.extensions.get(EXTENSION)
        if app_limiter is None:
            raise click.UsageError("this application has no OAuthRateLimit; name a configuration file with --config")
        # Commands are about the instances, so the emergency switch of this environment is ignored.
        settings: Settings = configured_settings(app) if self.is_switched_off else app_limiter.configured_settings
        if self._mongo_uri is None:
            return settings
        return replace(settings, store=replace(settings.store, uri=self._mongo_uri))

    def _open(self) -> Stores:
        stores = open_stores(self.settings.store)
        if stores is None:
            raise click.UsageError("counters are not shared: the configuration has no store.uri")
        click.get_current_context().call_on_close(stores.close)
        return stores

    @property
    def servers(self) -> str | None:
        """The host and port of MongoDB; None before a store is used."""
        stores: Stores | None = self.__dict__.get("stores")
        return None if stores is None else stores.servers

    @property
    def is_switched_off(self) -> bool:
        """True if the environment of this command has ``OAUTH_RATELIMIT_MODE=off``."""
        return os.environ.get(MODE_KEY, "").strip().lower() == Mode.OFF.value


pass_context = click.make_pass_decorator(CliContext)
