"""Stores in MongoDB."""

import sys
from importlib.util import find_spec

# The driver tries PyOpenSSL. Without service_identity that fails, but only after it has loaded cryptography for 38 ms.
if find_spec("service_identity") is None:
    sys.modules.setdefault("pymongo.pyopenssl_context", None)  # type: ignore[arg-type]  # None: fail at once
