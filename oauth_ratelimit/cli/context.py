"""Context of a command: the configuration of the application or of a file, and its database."""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import click
from flask.cli import NoAppException, ScriptInfo

from oauth_ratelimit.config import Settings, StoreSettings, load_config
from oauth_ratelimit.core.key import visible_name
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.overrides import OverrideKind, Target
from oauth_ratelimit.errors import ConfigError
from oauth_ratelimit.flask_authlib.app_config import MODE_KEY, configured_settings
from oauth_ratelimit.flask_authlib.app_limiter import EXTENSION
from oauth_ratelimit.operations.context import OperatorContext
from oauth_ratelimit.store.factory import Stores, open_stores

MAX_PROBLEMS = 3  # of a broken configuration; check-config lists them all
BROKEN = (
    "The configuration is broken, so only its store is used; limits, modes and all else that it names are unknown "
    "here. Running instances keep the last valid one; new workers do not start."
)
UNKNOWN_MODE = "unknown: the configuration is broken"
UNLESS_OFF = "{mode}, unless the last valid configuration has mode: off"
WITHOUT_APP = "Without the application: flask oauth-ratelimit --config FILE, before the command."
NO_STORE = (
    "the configuration has no store.uri, so there is no database with counters, statistics and overrides; set it, or "
    "name one with --mongo-uri before the command"
)

Function = TypeVar("Function", bound=Callable[..., Any])


class CliContext(OperatorContext):
    """Dependencies of one run of the command line.

    Args:
        config_path: A configuration file; None for the application's configuration.
        mongo_uri: Replaces ``store.uri`` of the configuration.
        script: Loads the Flask application; None outside of Flask.

    Attributes:
        config_path: The configuration file; None for the application's configuration.
        needs_store_alone: True if the address of MongoDB is enough for the command.
        broken: The error of a configuration that the command does without; None if it is valid.
    """

    def __init__(self, config_path: str | None, mongo_uri: str | None, script: ScriptInfo | None) -> None:
        super().__init__(self._load, self._open, clock=time.time)
        self.needs_store_alone = False
        self.broken: ConfigError | None = None
        self.config_path = config_path
        self._mongo_uri = mongo_uri
        self._script = script

    def accept_broken(self) -> None:
        """Do without a valid configuration: the address of MongoDB is enough for this command."""
        self.needs_store_alone = True

    @property
    def is_shared(self) -> bool:
        """True if the configuration has an address of MongoDB."""
        return self.settings.store.uri is not None

    @property
    def mode(self) -> Mode | None:
        """The global mode; None if it depends on the configuration, and that is broken.

        An override tells it only if it is off: off in the last valid configuration beats the others.
        """
        mode = self.policies.mode
        return None if self.broken and mode is not Mode.OFF else mode

    @property
    def mode_text(self) -> str:
        """The global mode as text; what is known of it if the configuration is broken."""
        if self.mode is not None:
            return self.mode
        is_overridden = any(override.target == Target(OverrideKind.MODE, None) for override in self.overrides)
        return UNLESS_OFF.format(mode=self.policies.mode) if is_overridden else UNKNOWN_MODE

    def _load(self) -> Settings:
        try:
            return self._load_valid()
        except ConfigError as exc:
            store = exc.store if isinstance(exc.store, StoreSettings) else None
            if self._mongo_uri is not None:
                store = replace(store or StoreSettings(), uri=self._mongo_uri)
            if not self.needs_store_alone or store is None:
                raise
            self.broken = exc
        for problem in self.broken.problems[:MAX_PROBLEMS]:
            click.secho(f"Broken: {visible_name(f'{self.broken.source}: {problem}')}", fg="yellow", err=True)
        click.secho(BROKEN, fg="yellow", err=True)
        return Settings(store=store)

    def _load_valid(self) -> Settings:
        if self.config_path is not None:
            return load_config(self.config_path, uri=self._mongo_uri)
        if self._script is None:
            raise click.UsageError("name a configuration file with --config")
        try:
            app = self._script.load_app()
        except NoAppException as exc:
            raise click.UsageError(f"{exc.message} {WITHOUT_APP}") from None
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
            raise click.UsageError(NO_STORE)
        click.get_current_context().call_on_close(stores.close_at_exit)
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
