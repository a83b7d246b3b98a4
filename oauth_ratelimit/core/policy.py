"""
What is limited: policies, and the set of them that applies to a client.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from oauth_ratelimit.core.enforcement import Canary, Mode, matches_any
from oauth_ratelimit.core.window import Estimator, Window

TOKEN_ENDPOINT = "token"

MAX_LIMIT = 2**53  # the largest number that every reader of JSON keeps exactly


@dataclass(frozen=True, slots=True)
class Policy:
    """
    One named limit: at most ``limit`` hits in any ``window``.

    Args:
        name: Stands in headers, logs and metrics.

        limit: Hits per window, 1 to 2^53.

        window: The trailing period and its frames.

        estimator: How frames are weighed.

        count_denied: Whether a denied request counts too, so that hammering keeps a client out.

        mode: Overrides the client's mode for this policy; None takes the client's.
    """

    name: str
    limit: int
    window: Window
    estimator: Estimator = Estimator.SLIDING
    count_denied: bool = False
    mode: Mode | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """
    The policies of one client at one place, by what they count.

    Args:
        client: For grants without a user, per client.

        user: For grants with a user, per client and user.

        client_total: For all grants of a client together.
    """

    client: tuple[Policy, ...] = ()
    user: tuple[Policy, ...] = ()
    client_total: tuple[Policy, ...] = ()


@dataclass(frozen=True, slots=True)
class ClientPolicies:
    """
    All that is decided about one client at one place before a request is seen.

    Args:
        limits: What applies.

        mode: What is done with a denial, canary and overrides included.

        trusted: Never denied, never counted.
    """

    limits: Limits
    mode: Mode
    trusted: bool = False


@dataclass(frozen=True, slots=True)
class Rules:
    """
    What the configuration says of one client or one endpoint: None inherits.

    Args:
        mode: Instead of the mode above.

        limits: Instead of the limits above, already completed with what they inherit.
    """

    mode: Mode | None = None
    limits: Limits | None = None


@dataclass(frozen=True, slots=True)
class PolicySet:
    """
    Everything that decides which policies a request meets. Never changed in place: a reload makes a new one.

    Args:
        mode: The mode of all that names none itself.

        limits: Defaults of the token endpoint.

        trusted: Client ids or patterns of them.

        clients: What differs for a client at the token endpoint.

        endpoints: Other endpoints, each with limits of its own.

        canary: Where enforcing starts, if not everywhere.

        instance: This instance's name, for a canary by instance.
    """

    mode: Mode = Mode.DRY_RUN
    limits: Limits = Limits()
    trusted: tuple[str, ...] = ()
    clients: Mapping[str, Rules] = field(default_factory=dict)
    endpoints: Mapping[str, Rules] = field(default_factory=dict)
    canary: Canary | None = None
    instance: str = ""

    def matching(self, client_id: str, *, endpoint: str = TOKEN_ENDPOINT) -> ClientPolicies:
        """
        Return what applies to a client at an endpoint. An endpoint that is not configured has no limits.

        The nearest mode wins: the client's, else the endpoint's, else the global one, which a canary turns back into
        a dry run for those outside it. Mode off at the top switches everything off.
        """
        client = self.clients.get(client_id, Rules())
        if endpoint == TOKEN_ENDPOINT:
            place = Rules(limits=client.limits or self.limits)
        else:
            place = self.endpoints.get(endpoint, Rules(limits=Limits()))
        mode = self.mode
        if mode is Mode.ENFORCE and self.canary and not self.canary.has_client(client_id, instance=self.instance):
            mode = Mode.DRY_RUN
        if mode is not Mode.OFF:
            mode = client.mode or place.mode or mode
        return ClientPolicies(limits=place.limits or Limits(), mode=mode, trusted=matches_any(self.trusted, client_id))
