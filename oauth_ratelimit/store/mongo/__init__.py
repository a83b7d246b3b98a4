"""Stores in MongoDB."""

import sys
from contextlib import suppress
from importlib.util import find_spec

OPTIONAL = "pymongo.pyopenssl_context"

# The driver tries PyOpenSSL. Without service_identity that fails, but only after it has loaded cryptography for 38 ms.
if find_spec("service_identity") is None and OPTIONAL not in sys.modules:
    sys.modules[OPTIONAL] = None  # type: ignore[assignment]  # None: fail at once
    with suppress(ImportError):  # if another version needs it, the next import loads it
        import pymongo.ssl_support  # noqa: F401
    del sys.modules[OPTIONAL]
