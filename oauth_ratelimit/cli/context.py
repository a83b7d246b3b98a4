"""Context of a command: the configuration of the application or of a file, and its database."""

import sys
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from shlex import quote
from typing import Any, TypeVar

import click
from click.core import ParameterSource
from flask import current_app
from flask.cli import NoAppException, ScriptInfo

from oauth_ratelimit.cli.output import print_text
from oauth_ratelimit.config import Settings, StoreSettings, load_config
from oauth_ratelimit.core.key import storable_name, visible_name
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.statistics import ClientMinute
from oauth_ratelimit.errors import ConfigError, StoreError, StoreUnreachable
from oauth_ratelimit.flask_authlib.app_config import configured_settings
from oauth_ratelimit.flask_authlib.app_limiter import EXTENSION
from oauth_ratelimit.operations.context import OperatorContext
from oauth_ratelimit.process.log import left_out
from oauth_ratelimit.store.factory import Stores, open_stores
from oauth_ratelimit.store.mongo.client import end_without_waiting

BAR_FROM = 5000  # minutes of clients, which take a second or two to read
MAX_PROBLEMS = 3  # of an invalid configuration; check-config lists them all
INVALID = (
    "The configuration is invalid, so only its store is used; limits, modes and all else that it names are unknown "
    "here. {effect}"
)
STILL_OFF = "It has mode: off, so limits are off on all its instances."
LAST_VALID = (
    "Running instances keep the last valid one; those that start now have limits off. To switch limits off everywhere: "
    r"printf '\nmode: off\n' >> FILE, which takes effect unless app.config has a mode."
)
UNKNOWN_MODE = "unknown: the configuration is invalid"
UNLESS_OFF = "{mode}, unless the last valid configuration has mode: off"
NOT_ATTACHED = "This application has no OAuthRateLimit: with --app name the module that attaches it."
WITHOUT_APP = "Without the application: {program} --config FILE, before the command."
NO_STORE = (
    "the configuration has no store.uri, so there is no database with counters, statistics and overrides; set it, or "
    "name one with --mongo-uri before the command. Without a database only the file changes limits and modes: the line "
    "mode: dry-run or mode: off in it takes effect within seconds"
)

Function = TypeVar("Function", bound=Callable[..., Any])


def reason_text(error: Exception) -> str:
    """Return the type and the first line of an error of the application."""
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), 'no message')}"


def says_off(error: ConfigError) -> bool:
    """Return True if a file that is not valid has ``mode: off``."""
    return error.valid_parts is not None and not error.valid_parts.is_rejected


def effect_of(error: ConfigError) -> str:
    """Return what applies to instances whose file is not valid."""
    return STILL_OFF if says_off(error) else LAST_VALID


class CliContext(OperatorContext):
    """Dependencies of one run of the command line.

    ``mongo_uri`` replaces ``store.uri`` of the configuration: that of a file, or else of the application that
    ``script`` loads.
    """

    def __init__(self, config_path: str | None, mongo_uri: str | None, script: ScriptInfo | None) -> None:
        super().__init__(self._load, self._open, clock=self._time)
        self.allows_invalid_config = False  # True if the address of MongoDB is enough for the command
        self._invalid: ConfigError | None = None
        self.config_path = config_path
        self._mongo_uri = mongo_uri
        self._script = script

    def or_file(self, path: str) -> "CliContext":
        """Return this context, or that of a file if none was named."""
        return self if self.config_path else CliContext(path, self._mongo_uri, self._script)

    @property
    def is_shared(self) -> bool:
        return self.settings.store.uri is not None

    def _time(self) -> float:
        """Return the time of MongoDB, by which overrides end; that of this machine if it does not answer.

        Raises ``StoreUnreachable``: what the command asks next would wait as long for no server.
        """
        try:
            return self.stores.counters.time_s() if self.is_shared else time.time()
        except StoreUnreachable:
            raise
        except (StoreError, click.UsageError):  # errors of usage are for the command to report
            return time.time()

    @property
    def invalid(self) -> ConfigError | None:
        """The error of a configuration that the command does without; None if it is valid."""
        _ = self.settings  # which finds it
        return self._invalid

    @property
    def mode(self) -> Mode | None:
        """The global mode; None if it depends on the configuration, and that is invalid.

        An override tells it only if it is off: off in the last valid configuration beats the others.
        """
        return None if self.invalid and self.policies.mode is not Mode.OFF else self.policies.mode

    @property
    def mode_text(self) -> str:
        """The global mode as text; what is known of it if the configuration is invalid."""
        if self.mode is not None:
            return self.mode
        return UNLESS_OFF.format(mode=self.policies.mode) if self.origins.of_mode("").override else UNKNOWN_MODE

    def _load(self) -> Settings:
        try:
            return self._load_valid()
        except ConfigError as exc:
            store = exc.valid_parts.store if exc.valid_parts else StoreSettings()
            settings = Settings(store=replace(store, uri=self._mongo_uri or store.uri))
            if not self.allows_invalid_config or settings.store.uri is None:
                raise
            self._invalid = exc
        for problem in self._invalid.problems[:MAX_PROBLEMS]:
            print_text(f"Invalid: {visible_name(f'{self._invalid.source}: {problem}')}", fg="yellow", err=True)
        print_text(INVALID.format(effect=effect_of(self._invalid)), fg="yellow", err=True)
        return settings.switched_off() if says_off(self._invalid) else settings

    def _load_valid(self) -> Settings:
        if self.config_path is not None:
            return load_config(self.config_path, uri=self._mongo_uri)
        if self._script is None:
            raise click.UsageError("name a configuration file with --config")
        token = left_out.set("config_rejected")  # the command prints the problems
        try:
            app = self._script.load_app()
        except NoAppException as exc:
            raise click.UsageError(f"{exc.message} {WITHOUT_APP.format(program=program())}") from None
        except ConfigError:
            raise
        except Exception as exc:  # it may raise anything
            raise click.UsageError(
                f"The application cannot be loaded ({reason_text(exc)}). {WITHOUT_APP.format(program=program())}"
            ) from exc
        finally:
            left_out.reset(token)
        if EXTENSION not in app.extensions:
            raise click.UsageError(f"{NOT_ATTACHED} {WITHOUT_APP.format(program=program())}")
        # Commands are about the instances, so the emergency switch of this environment is ignored.
        settings = configured_settings(app)
        if self._mongo_uri is None:
            return settings
        return replace(settings, store=replace(settings.store, uri=self._mongo_uri))

    def _open(self) -> Stores:
        stores = open_stores(self.settings.store)
        if stores is None:
            raise click.UsageError(NO_STORE)
        click.get_current_context().call_on_close(stores.close)
        end_without_waiting()
        return stores

    def minutes(self, since_s: float, client_id: str | None = None, **parts: Collection[str]) -> Iterator[ClientMinute]:
        """Yield recorded minutes, of many with a progress bar on a terminal."""
        found, statistics = super().minutes(since_s, client_id, **parts), self.stores.statistics
        stored = client_id and storable_name(client_id)
        if not sys.stderr.isatty() or (count := statistics.count(since_s, self.now_s, stored)) < BAR_FROM:
            yield from found
            return
        with click.progressbar(
            found, length=count, label="reading", file=sys.stderr, update_min_steps=BAR_FROM // 10
        ) as shown:
            yield from shown

    @property
    def servers(self) -> str | None:
        """The host and port of MongoDB; None before a store is used."""
        stores: Stores | None = self.__dict__.get("stores")
        return None if stores is None else stores.servers


def program() -> str:
    """Return the name that the group of commands was called by, such as ``flask oauth-ratelimit``."""
    context = click.get_current_context()
    while context.parent is not None and isinstance(context.parent.obj, CliContext):
        context = context.parent
    return context.command_path


def invocation() -> str:
    """Return the same with the application or the file that this run was given, to be pasted into a shell."""
    context = click.get_current_context()
    root, found, words = context.find_root(), context.find_object(CliContext), program()
    info = context.find_object(ScriptInfo)
    if info and info.app_import_path and root.get_parameter_source("app") is ParameterSource.COMMANDLINE:
        words = words.replace(f"{root.info_name} ", f"{root.info_name} --app {quote(info.app_import_path)} ", 1)
    return words if found is None or found.config_path is None else f"{words} --config {quote(found.config_path)}"


def script_of(context: click.Context) -> ScriptInfo | None:
    """Return what loads the application: Flask's own, or in a program of the application's the current one."""
    if context.find_object(ScriptInfo) is None and current_app:
        return ScriptInfo(create_app=current_app._get_current_object)  # type: ignore[attr-defined]  # a proxy's
    return context.find_object(ScriptInfo)


pass_context = click.make_pass_decorator(CliContext)
