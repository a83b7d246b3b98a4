"""
The configuration file: from YAML or a mapping to frozen ``Settings``, or ``ConfigError`` with everything that is wrong.

The way of a file::

  document.py   bytes -> mapping, whatever the file holds
  models.py     the keys of the file, checked by pydantic; the JSON Schema
  notation.py   how durations and limits are written
  problems.py   errors in words
  build.py      models -> values of the core
  settings.py   what the rest of the package sees
  changes.py    what a reload has changed, in words
  source.py     watches the file
"""

from oauth_ratelimit.config.load import load_config
from oauth_ratelimit.config.models import config_schema
from oauth_ratelimit.config.settings import DenialSettings, Settings, StoreSettings, SyncSettings

__all__ = ["DenialSettings", "Settings", "StoreSettings", "SyncSettings", "config_schema", "load_config"]
