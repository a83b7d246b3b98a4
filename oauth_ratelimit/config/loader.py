"""Loading: from a path or a mapping to settings."""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from oauth_ratelimit.config.document import line_numbers, parse_yaml, plain_mapping, read_file, store_section
from oauth_ratelimit.config.errors import Problems
from oauth_ratelimit.config.limits import LIMITS, MODE
from oauth_ratelimit.config.policies import find_clashes, find_dangling_names
from oauth_ratelimit.config.settings import FILE, MONGO_URI, Settings, StoreSettings
from oauth_ratelimit.config.types import keys_of
from oauth_ratelimit.core.policy import OwnLimits
from oauth_ratelimit.errors import ConfigError


def load_config(
    source: str | os.PathLike[str] | Mapping[str, Any], *, mode: str | None = None, uri: str | None = None
) -> Settings:
    """Return the settings that a YAML file or a mapping holds.

    Args:
        source: Path of the file, or what the file would hold. ``{}`` is nothing but defaults.
        mode: Instead of the global mode in ``source``; ``off`` is the emergency switch.
        uri: Instead of ``store.uri`` in ``source``.

    Raises:
        ConfigError: With every problem at once, each with the path of its key, the value and what is allowed.
    """
    if isinstance(source, Mapping):
        return parse_settings(plain_mapping(source), source="configuration", mode=mode, uri=uri)
    content, _ = read_file(source)
    return parse_file(content, source=os.fspath(source), mode=mode, uri=uri)


def parse_file(content: bytes, *, source: str, mode: str | None = None, uri: str | None = None) -> Settings:
    """Return the settings in the content of a file.

    Raises:
        ConfigError: As ``load_config``; each problem with its line, and with the store's address if there is one.
    """
    try:
        values = parse_yaml(content, source=source)
        return parse_settings(values, source=source, mode=mode, uri=uri, content=content)
    except ConfigError as exc:
        problems = exc.problems
    raise ConfigError(problems, source=source, store=_readable_store(store_section(content), uri))


def _readable_store(section: object, uri: str | None) -> StoreSettings | None:
    """Return the settings of a store without those that are not valid; None without an address."""
    given = section if isinstance(section, Mapping) else {}
    values = {**given, "uri": uri or given.get("uri")}
    valid = {}
    for key in keys_of(StoreSettings):
        problems = Problems()
        value = key.kind.parse(values.get(key.name, key.default), key.name, problems)
        if not problems:
            valid[key.attribute] = value
    return StoreSettings(**valid) if valid.get("uri") else None


def parse_settings(
    values: dict[str, Any],
    *,
    source: str,
    mode: str | None = None,
    uri: str | None = None,
    content: bytes | None = None,
) -> Settings:
    """Return the settings in plain values, with ``mode`` and ``uri`` on top. ``content`` is for lines in problems.

    Raises:
        ConfigError: As ``load_config``; ``source`` is the origin of the values.
    """
    problems = Problems()
    settings: Settings | None = FILE.parse(values, "", problems)
    own_mode = None if mode is None else MODE.parse(mode, "OAUTH_RATELIMIT_MODE", problems)
    if uri is not None:
        MONGO_URI.parse(uri, "OAUTH_RATELIMIT_MONGO_URI", problems)
    find_dangling_names(values, problems)
    if settings:
        find_clashes(settings.policies, problems)
    if problems or settings is None:
        raise problems.error(source=source, line_of=line_numbers(content) if content else lambda _: None)
    if own_mode:
        settings = replace(settings, policies=replace(settings.policies, mode=own_mode))
    if uri is not None:
        settings = replace(settings, store=replace(settings.store, uri=uri))
    return settings


def parse_limits(values: Mapping[str, Any]) -> OwnLimits:
    """Return the limits in a ``limits`` section that comes from a command and not from a file.

    Raises:
        ConfigError: With every problem at once.
    """
    problems = Problems()
    limits: OwnLimits = LIMITS.parse(plain_mapping(values), "limits", problems)
    if problems:
        raise problems.error(source="limits")
    return limits
