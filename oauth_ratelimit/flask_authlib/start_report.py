"""Report of a start: one log line per worker, and the names in the configuration that match nothing."""

import re
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from inspect import unwrap
from typing import Any

from authlib.integrations.flask_oauth2 import AuthorizationServer
from flask import Flask
from werkzeug.routing import Rule

from oauth_ratelimit.config import Settings
from oauth_ratelimit.config.errors import did_you_mean
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import IMPLICIT, PolicySet
from oauth_ratelimit.flask_authlib.server_methods import HookedMethod
from oauth_ratelimit.flask_authlib.unseen import type_of, unseen_checks
from oauth_ratelimit.operations.format import NO_FILE, canary_text, limits_by_kind, names_text, store_text, warnings_of
from oauth_ratelimit.process.log import get_logger

FIRST_WITHOUT_ADVISORY = (1, 6, 12)  # but for 1.7.0
ADVISORIES = "https://github.com/authlib/authlib/security/advisories"

log = get_logger(__name__)


@dataclass(eq=False)
class StartReport:
    """Event ``ratelimit_started`` of a process, logged when its worker starts: with its first token request.

    The servers are those that were passed to the extension. All that have the mixin are limited.
    """

    app: Flask
    servers: Sequence[Any]
    mixin: type

    def log(self, settings: Settings, host_path: str | None, *, authorize_endpoint: bool) -> None:
        """Log what applies, and the grant types and endpoints in the configuration that match nothing.

        ``host_path`` is the file that this process counts in with others.
        """
        policies = settings.policies
        limited = [type_of(grant) or grant.__name__ for grant in self._grants("_token_grants")]
        front_channel = _response_types(self._grants("_authorization_grants"))
        log.info(
            "ratelimit_started",
            mode=policies.mode.value,
            canary=canary_text(policies.canary),
            limits={} if policies.mode is Mode.OFF else limits_by_kind(policies),
            store=store_text(settings.store),
            host=host_path or NO_FILE,
            trusted_clients=names_text([*policies.trusted, *policies.trusted_ids]),
            servers=[f"{_name_of(server)}: {_deciding_hook(server)}" for server in self._limited()],
            grants=list(dict.fromkeys([*limited, *(front_channel if authorize_endpoint else ())])),
            unprotected_grants=dict.fromkeys(() if authorize_endpoint else front_channel, "authorize_endpoint=False"),
        )
        self.warn(settings)
        if is_vulnerable(version("authlib")):
            log.warning("authlib_vulnerable", version=version("authlib"), hint=f"upgrade it: see {ADVISORIES}")
        for server in self._all_servers():
            if not isinstance(server, self.mixin):
                grants = [type_of(grant) for grant, _ in server._token_grants]
                log.warning(
                    "server_unlimited",
                    server=_name_of(server),
                    grants=[name for name in grants if name],
                    hint="pass it, too: OAuthRateLimit(app, [server, other]); or derive its class from RateLimitMixin",
                )

    def warn(self, settings: Settings, former: Settings | None = None) -> None:
        """Log what an operator should know about settings, unless it holds for the former ones, too."""
        known = [] if former is None else list(self._warnings(former))
        for event, facts in self._warnings(settings):
            if (event, facts) not in known:
                log.warning(event, **facts)

    def _warnings(self, settings: Settings) -> Iterator[tuple[str, dict[str, str]]]:
        for event, hint in warnings_of(settings):
            yield event, {"hint": hint}
        for name, hint in self.unknown_grants(settings.policies):
            yield "grant_unknown", {"grant_type": name, "hint": hint}
        for name, hint in self.unknown_endpoints(settings.policies):
            yield "endpoint_unknown", {"endpoint": name, "hint": hint}
        for server in self._limited() if settings.is_guarded else ():
            for name, hint in unseen_checks(server):
                yield "guard_sees_no_check", {"name": name, "hint": hint}

    def unknown_grants(self, policies: PolicySet) -> Iterator[tuple[str, str]]:
        """Yield name and hint of each grant type in a configuration that the application does not have."""
        known = {type_of(grant) for grant in self._grants("_token_grants")}
        if _response_types(self._grants("_authorization_grants")):
            known.add(IMPLICIT)
        if None not in known:  # else a grant chooses its requests by itself
            yield from _unknown(policies.named_grants, {name for name in known if name})

    def unknown_endpoints(self, policies: PolicySet) -> Iterator[tuple[str, str]]:
        """Yield name and hint of each endpoint in a configuration that the application does not have."""
        routes = list(self.app.url_map.iter_rules())
        named = []
        for name, rules in policies.endpoints.items():
            if not rules.paths:
                named.append(name)
            for path in rules.paths:
                if not any(_may_match(route, path, rules.methods) for route in routes):
                    yield name, f"its path {path} never applies; no route of the application has it with its method"
        ours = {name for server in self._limited() for name in getattr(server, "_endpoints", ())}
        yield from _unknown(named, {*ours, *self.app.view_functions})

    def _grants(self, attribute: str) -> list[Any]:
        return [grant for server in self._limited() for grant, _ in getattr(server, attribute, ())]

    def _limited(self) -> list[Any]:
        """Return the servers with the mixin, which those that were passed have unless their class forbids it."""
        return [server for server in self._all_servers() if isinstance(server, self.mixin)]

    def _all_servers(self) -> list[Any]:
        used = _servers_used_by(self.app)
        return [*self.servers, *(server for server in used if server not in self.servers)]


def _may_match(rule: Rule, path: str, methods: Collection[str]) -> bool:
    """Return True if a request may match a route and a configured path, wherever the application is mounted."""
    if methods and rule.methods and not {*methods} & rule.methods:
        return False
    route = re.sub("<[^>]*>", "*", rule.rule)  # converters match anything
    routes = {route} if rule.strict_slashes else {route, route.rstrip("/"), f"{route}/"}
    path = re.sub(r"\[.[^]]*\]", "?", path)
    below = [path[start:] for start, letter in enumerate(path) if letter == "/"]
    return any(_overlap(part, each) for part in (path, *below) for each in routes)


def _overlap(first: str, second: str) -> bool:
    """Return True if a text matches two patterns of ``*`` and ``?``."""
    open_pairs, seen = [(first, second)], set()
    while open_pairs:
        first, second = pair = open_pairs.pop()
        if pair in seen:
            continue
        seen.add(pair)
        if not first and not second:
            return True
        if second[:1] == "*":
            first, second = second, first
        if first[:1] == "*":
            open_pairs += [(first[1:], second), *([(first, second[1:])] if second else ())]
        elif first and second and (first[0] == second[0] or "?" in (first[0], second[0])):
            open_pairs.append((first[1:], second[1:]))
    return False


def is_vulnerable(authlib_version: str) -> bool:
    """Return True for a version of Authlib with published vulnerabilities."""
    numbers = tuple(int(part) for part in re.findall(r"[0-9]+", authlib_version)[:3])
    return numbers < FIRST_WITHOUT_ADVISORY or numbers == (1, 7, 0)


def _name_of(server: Any) -> str:
    return f"{type(server).__module__}.{type(server).__qualname__}"


def _deciding_hook(server: Any) -> str:
    """Return the method whose arguments name client, user and grant type. Only in the first a token can be reused.

    Authlib's grants pass them by keyword.
    """
    method = getattr(server, "generate_token", None)
    if not isinstance(method, HookedMethod):
        return "save_token"
    shows = method.argument_names.takes_any or method.shows("grant_type", "client", "user")
    return "generate_token" if shows else "save_token"


def _response_types(grants: Iterable[Any]) -> list[str]:
    """Return names for the tokens from the authorization endpoint. That for a code comes from the token endpoint."""
    types = (kind for grant in grants for kind in sorted(getattr(grant, "RESPONSE_TYPES", ())))
    return [f"response_type={response_type}" for response_type in types if response_type != "code"]


def _unknown(names: Iterable[str], known: set[str]) -> Iterator[tuple[str, str]]:
    named = sorted(name for name in known if not name.startswith("oauth_ratelimit_"))  # without the pages of ours
    for name in names:
        if name not in known:
            has = ", ".join(names_text(named)) or "none"
            yield name, f"its rules never apply; the application has {has}{did_you_mean(name, named)}"


def _servers_used_by(app: Flask) -> list[Any]:
    """Return the servers that can issue tokens and that the views of an application seem to use.

    Authlib registers its servers nowhere, so they are looked for where a view usually has them: in its module, its
    closure or its object, and in the application's extensions. One that a view finds in another way is not seen.
    """
    values = list(app.extensions.values())
    modules: set[str] = set()
    for view in map(unwrap, app.view_functions.values()):
        modules.add(getattr(getattr(view, "view_class", view), "__module__", ""))
        values += _values_in(view)
    for name in modules & sys.modules.keys():
        values += list(vars(sys.modules[name]).values())
    servers = {id(value): value for value in values if issubclass(type(value), AuthorizationServer)}  # asks no proxy
    return [server for server in servers.values() if server._token_grants or server._authorization_grants]


def _values_in(view: Any) -> Iterator[Any]:
    """Yield what a view holds itself: its object, what that holds, and its closure."""
    owner = getattr(view, "__self__", None)
    yield owner
    yield from list(getattr(owner, "__dict__", {}).values())
    for cell in getattr(view, "__closure__", None) or ():
        try:
            yield cell.cell_contents
        except ValueError:  # empty
            continue
