"""
The configuration file: from YAML or a mapping to frozen ``Settings``, or ``ConfigError`` with all that is wrong in it.

::

  source.py     hot reload of the file
  loader.py     load_config(): path or mapping -> settings
  document.py   bytes -> mapping, whatever the file holds
  settings.py   Settings and its sections: each key with type, default and description
  policies.py   plans, clients, grant types, endpoints, canary -> PolicySet
  limits.py     limits -> Policy
  notation.py   durations and the shorthand of limits
  types.py      types of values: parse, schema, words
  errors.py     problems in words
  diff.py       changes of a reload in words
  reference.py  JSON Schema and reference page
"""

from oauth_ratelimit.config.diff import describe_changes
from oauth_ratelimit.config.loader import load_config
from oauth_ratelimit.config.settings import (
    DenialSettings,
    EventSettings,
    GuardSettings,
    PrivacySettings,
    Settings,
    StatisticsSettings,
    StoreSettings,
    SyncSettings,
)

__all__ = [
    "DenialSettings",
    "EventSettings",
    "GuardSettings",
    "PrivacySettings",
    "Settings",
    "StatisticsSettings",
    "StoreSettings",
    "SyncSettings",
    "describe_changes",
    "load_config",
]
