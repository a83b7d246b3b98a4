"""
The configuration file: from YAML or a mapping to frozen ``Settings``, or ``ConfigError`` with everything that is wrong.

The way of a file::

  source.py     watches the file
  load.py       the one call: path or mapping -> settings
  document.py   bytes -> mapping, whatever the file holds
  models.py     the keys of the file, checked by pydantic; guard.py, limits.py, privacy.py, section.py, telling.py and
                values.py are its parts
  schema.py     the JSON Schema of that
  notation.py   how durations and limits are written
  problems.py   errors in words
  build.py      models -> values of the core
  settings.py   what the rest of the package sees
  changes.py    what a reload has changed, in words
"""

from oauth_ratelimit.config.changes import describe_changes
from oauth_ratelimit.config.load import load_config
from oauth_ratelimit.config.schema import config_schema, schema_text
from oauth_ratelimit.config.settings import (
    DenialSettings,
    EventSettings,
    GuardSettings,
    PrivacySettings,
    Settings,
    StoreSettings,
    SyncSettings,
)
from oauth_ratelimit.config.source import ConfigSource

__all__ = [
    "ConfigSource",
    "DenialSettings",
    "EventSettings",
    "GuardSettings",
    "PrivacySettings",
    "Settings",
    "StoreSettings",
    "SyncSettings",
    "config_schema",
    "describe_changes",
    "load_config",
    "schema_text",
]
