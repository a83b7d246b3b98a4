"""Time that hits may wait to be sent: less, the nearer a key is to its limit."""

import math
from collections.abc import Iterable, Sequence

from oauth_ratelimit.core.tier import Content, Tier

FAR_RATIO = 1 / 8  # of a limit: a key is far while this is not used up, if others count as much as this instance
FEWEST_UNSENT = 3  # hits of each instance; a limit that allows fewer is never far, so small limits are kept closely
UNSENT_RATIO = 1 / 20  # of a limit: unsent hits of all known instances together on a key that is far from it, or unread
FEW_HITS = 10  # a new key that may have fewer unsent hits is synchronised at once, any other with the next cycle


def must_send(tier: Tier, known: float, unsent: int, *, writer_count: int, is_read: bool) -> bool:
    """Return whether a key is synchronised at once, because of its unsent hits.

    ``known`` is the estimate without them. Without ``is_read``, nothing is known of the document yet.
    """
    count = writer_count
    return unsent >= (alert(tier, known, writer_count=count) if is_read else alert_unread(tier, writer_count=count))


def is_urgent_when_new(tiers: Iterable[Tier], *, writer_count: int) -> bool:
    """Return whether so few hits of an unread key may wait that a full cycle would come too late."""
    return any(alert_unread(tier, writer_count=writer_count) < FEW_HITS for tier in tiers)


def alert(tier: Tier, known: float, *, writer_count: int) -> int:
    """Return the unsent hits from which on a key is synchronised at once.

    That is a small part of the limit, or this instance's share of the remaining hits if that is less. It is more while
    the limit is far.
    """
    share = math.ceil((tier.limit - known) / writer_count)
    far = int(min(tier.limit * UNSENT_RATIO, tier.limit * FAR_RATIO - writer_count * known) / writer_count)
    return max(1, min(share, tier.urgent_hits), far if far >= FEWEST_UNSENT else 0)


def alert_unread(tier: Tier, *, writer_count: int) -> int:
    """Return the same for a key whose document was not read yet."""
    return max(1, min(tier.urgent_hits, int(tier.limit * UNSENT_RATIO / writer_count)))


def is_far(tiers: Sequence[Tier], contents: Iterable[Content], *, writer_count: int) -> bool:
    """Return whether only ``FAR_RATIO`` of each limit would be used up if every instance counted as much as this."""
    for tier, content in zip(tiers, contents, strict=True):
        is_near = content.estimate * writer_count >= FAR_RATIO * tier.limit
        if is_near or tier.limit * UNSENT_RATIO < FEWEST_UNSENT * writer_count:
            return False
    return True
