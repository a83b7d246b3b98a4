"""Limits token creation at an OAuth 2 token endpoint, per client and user, shared over instances through MongoDB.

The way of a request through the package::

    edge/authlib.py      the server's methods we shadow -> client and user   (request)
    core/pseudonyms.py      username -> its pseudonym: the name or a keyed hash
    core/key.py          client, user, scope -> the identity of a document   (key)
    config/              the file or mapping -> Settings, or ConfigError      (policy)
    core/policy.py       what is limited: PolicySet.matching()                (policy)
    core/tier.py         the policies that one request meets                  (policy)
    core/mode.py         off, dry run, enforce; canary                        (policy)
    core/window.py       frames, estimate, retry, reset                       (decision)
    core/decision.py     Decision: admissions, denials, repeated denials     (decision)
    limiter.py           Limiter.check(): one pass over all this              (decision)
    sync/place.py        one client at one endpoint: decides and counts       (counters)
    sync/counters.py     buckets: in-flight hits on top of the global snapshot
    sync/cycle.py        which keys a cycle looks at                          (flush)
    sync/flusher.py      flush, pull, merge; exactly once                     (flush)
    sync/scheduler.py    the background thread that runs the cycle
    courtesy.py          how a cycle lets requests through; forks.py, what a fork must not share
    store/base.py        the protocol of a store; store/memory.py, in-process
    store/mongo.py       compare-and-set in bulks                             (MongoDB)
    edge/response.py     Decision -> 429 body and headers; edge/exit.py, the quota headers of all other answers
    edge/extension.py    OAuthRateLimit.init_app(): reads config, wires everything
    edge/pages.py        metrics and health, where the application registers them
    observe/             what operators see: events, metrics, hooks

Beside it, for operators::

    core/overrides.py    changes at run time -> a new PolicySet; store/overrides.py keeps them, overlay.py follows them
    core/layers.py       which layer of the configuration has won
    guard.py             failed authentications, counted apart: core/failure.py says against whom, edge/claims.py sees
    standing.py          a document -> how much of each limit is used
    pulse.py             signs of life of each instance
    core/denial.py       a logged denial, for explain --id; observe/denials.py takes it to store/denials.py
    core/statistics.py   a client's minute; observe/statistics.py counts it, store/statistics.py keeps it
    core/sums.py         the same over some time
    core/what_if.py      what another limit would have done
    report/              which clients mint tokens, and what to tell their owners
    worker.py            what each process runs in the background: the cycle, and further duties
    store/migrate.py     migrations/, applied in order and recorded
    simulate/            recorded traffic through any algorithm, and pictures of it
    cli/                 flask oauth-ratelimit
    admin/               the page for operators: charts, who is near a limit, overrides
    operating/           what both show and change
    testing.py           a frozen clock and counters in memory, for users' tests
"""

from oauth_ratelimit.config import Settings, load_config
from oauth_ratelimit.core.decision import Decision
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.errors import ConfigError, RateLimitError, StoreError, StoreRejected, StoreUnavailable
from oauth_ratelimit.flask_authlib.extension import OAuthRateLimit
from oauth_ratelimit.flask_authlib.hooks import RateLimitMixin
from oauth_ratelimit.flask_authlib.responses import RateLimited
from oauth_ratelimit.limiter import Limiter

__all__ = [
    "ConfigError",
    "Decision",
    "Limiter",
    "Mode",
    "OAuthRateLimit",
    "RateLimitError",
    "RateLimitMixin",
    "RateLimited",
    "Settings",
    "StoreError",
    "StoreRejected",
    "StoreUnavailable",
    "load_config",
]
