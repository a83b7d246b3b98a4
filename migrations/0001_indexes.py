"""Let MongoDB remove what has expired, and find statistics by their minute."""

from collections.abc import Mapping
from typing import Any

from pymongo.errors import OperationFailure

from oauth_ratelimit.errors import StoreRejected
from oauth_ratelimit.store.mongo.client import FAILURES, code_of
from oauth_ratelimit.store.mongo.indexes import INDEXES, IndexProblem, create_indexes, index_problems


def problems(collections: Mapping[str, Any]) -> list[IndexProblem]:
    """Return what is wrong with the indexes. Without the guard there are no failures."""
    used = [name for name in INDEXES if name != FAILURES or collections[FAILURES].index_information()]
    return [problem for name in used for problem in index_problems(collections[name], INDEXES[name])]


def upgrade(collections: Mapping[str, Any]) -> None:
    """Create the indexes that do not exist."""
    for name, indexes in INDEXES.items():
        try:
            create_indexes(collections[name], indexes)
        except OperationFailure as exc:
            in_way = [each for each in index_problems(collections[name], indexes) if each.in_way]
            if not in_way:
                raise
            code = code_of(exc.details or {})
            raise StoreRejected(f"MongoDB refused: {code}: " + "\n".join(map(str, in_way)), code=code) from None
