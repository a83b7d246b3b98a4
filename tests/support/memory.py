"""What an object of the package keeps in memory, whatever its parts are called."""

import gc
from collections import deque
from collections.abc import Iterator

CONTAINERS = (dict, list, tuple, set, frozenset, deque)


def held_by(owner: object, *, without: tuple[object, ...] = ()) -> Iterator[object]:
    """Yield everything that an object holds, through containers and objects of the package, ``without`` some parts."""
    seen = {id(part) for part in without}
    found = [owner]
    while found:
        value = found.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        yield value
        if isinstance(value, CONTAINERS) or type(value).__module__.startswith("oauth_ratelimit."):
            found += gc.get_referents(value)


def entry_count(owner: object, *, without: tuple[object, ...] = ()) -> int:
    """Return the number of entries in containers. The fields of a named tuple are none: nothing adds to them."""
    held = held_by(owner, without=without)
    return sum(len(value) for value in held if isinstance(value, CONTAINERS) and not hasattr(value, "_fields"))
