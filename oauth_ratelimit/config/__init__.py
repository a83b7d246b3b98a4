"""The configuration: from YAML or a mapping to frozen ``Settings``, or ``ConfigError`` with all that is wrong in it."""

from oauth_ratelimit.config.diff import describe_changes
from oauth_ratelimit.config.loader import load_config
from oauth_ratelimit.config.settings import DenialSettings, PrivacySettings, Settings, StoreSettings, SyncSettings

__all__ = [
    "DenialSettings",
    "PrivacySettings",
    "Settings",
    "StoreSettings",
    "SyncSettings",
    "describe_changes",
    "load_config",
]
