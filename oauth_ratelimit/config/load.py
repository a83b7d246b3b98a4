"""Loading: one call from a path or a mapping to settings."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from oauth_ratelimit.config.build import build_limits, build_settings, find_clashes
from oauth_ratelimit.config.document import parse_yaml, plain_mapping, read_file
from oauth_ratelimit.config.limits import LimitsModel
from oauth_ratelimit.config.models import FileModel
from oauth_ratelimit.config.problems import describe, dotted, show
from oauth_ratelimit.config.settings import Settings
from oauth_ratelimit.config.values import ModeName, MongoUri
from oauth_ratelimit.core.mode import Mode
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
        return settings_of(plain_mapping(source), source="configuration", mode=mode, uri=uri)
    content, _ = read_file(source)
    path = os.fspath(source)
    return settings_of(parse_yaml(content, source=path), source=path, mode=mode, uri=uri)


def settings_of(values: dict[str, Any], *, source: str, mode: str | None = None, uri: str | None = None) -> Settings:
    """Return the settings that checked out of plain values, with what overrides them on top.

    Raises:
        ConfigError: As ``load_config``; ``source`` says where the values came from.
    """
    problems = [*_find_bad_overrides(mode, uri), *_find_dangling_names(values)]
    settings = None
    try:
        settings = build_settings(FileModel.model_validate(values))
    except ValidationError as exc:
        problems = [*describe(exc), *problems]
    if settings:
        problems.extend(find_clashes(settings.policies))
    # Raised outside of the except clause, because the validation's own error holds the values, passwords included.
    if problems or not settings:
        raise ConfigError(problems, source=source)
    if mode is not None:
        settings = replace(settings, policies=replace(settings.policies, mode=Mode(mode)))
    if uri is not None:
        settings = replace(settings, store=replace(settings.store, uri=uri))
    return settings


def limits_of(values: Mapping[str, Any]) -> OwnLimits:
    """Return the limits that a ``limits`` section stands for: one that comes from a command and not from a file.

    Raises:
        ConfigError: With every problem at once.
    """
    try:
        return build_limits(LimitsModel.model_validate(plain_mapping(values)))
    except ValidationError as exc:
        problems = describe(exc, at=["limits"])
    raise ConfigError(problems, source="limits")


def _find_bad_overrides(mode: str | None, uri: str | None) -> list[str]:
    problems: list[str] = []
    checks: tuple[tuple[str, Any, Any], ...] = (
        ("OAUTH_RATELIMIT_MODE", mode, ModeName),
        ("OAUTH_RATELIMIT_MONGO_URI", uri, MongoUri),
    )
    for name, value, annotation in checks:
        try:
            TypeAdapter(annotation | None).validate_python(value, strict=True)
        except ValidationError as exc:
            problems.extend(describe(exc, at=[name]))
    return problems


def _find_dangling_names(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield a problem for each plan or endpoint that is referred to and not there.

    Looks at the raw values, so that these problems are found together with all others.
    """
    plans, endpoints = (list(_mapping(values.get(name))) for name in ("plans", "endpoints"))
    for section in ("plans", "clients"):
        for owner, rules in _mapping(values.get(section)).items():
            plan = _mapping(rules).get("plan") if section == "clients" else None
            if isinstance(plan, str) and plan not in plans:
                yield _dangling([section, owner, "plan"], plan, section="plans", known=plans)
            for name in _mapping(_mapping(rules).get("endpoints")):
                if name not in endpoints:
                    yield _dangling([section, owner, "endpoints"], name, section="endpoints", known=endpoints)


def _dangling(location: list[str], name: str, *, section: str, known: list[str]) -> str:
    allowed = ", ".join(known) or f"none, because {section} is empty"
    return f"{dotted(location)}: got {show(name)}, allowed: {allowed}"


def _mapping(value: object) -> dict[str, Any]:
    """Return a mapping's items that have text for a key; nothing for any other value."""
    return {key: item for key, item in value.items() if isinstance(key, str)} if isinstance(value, dict) else {}
