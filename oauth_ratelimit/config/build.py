"""From the file's models to the values that the package works with."""

import socket
from collections.abc import Iterator, Mapping

from oauth_ratelimit.config.guard import GuardModel
from oauth_ratelimit.config.limits import Entry, LimitModel, LimitsModel, named
from oauth_ratelimit.config.models import CanaryModel, ClientModel, FileModel, PlaceModel, PlanModel
from oauth_ratelimit.config.problems import dotted
from oauth_ratelimit.config.section import Switch
from oauth_ratelimit.config.settings import (
    DenialSettings,
    EventSettings,
    GuardSettings,
    PrivacySettings,
    Settings,
    StatisticsSettings,
    StoreSettings,
    SyncSettings,
)
from oauth_ratelimit.core.failed_auth import FailureKind, FailureLimits
from oauth_ratelimit.core.mode import Canary, Mode
from oauth_ratelimit.core.policy import Limits, OwnLimits, Policy, PolicySet, Rules
from oauth_ratelimit.core.window import Window


def build_settings(file: FileModel) -> Settings:
    """Return the settings that a checked file stands for."""
    return Settings(
        policies=_policy_set(file),
        store=StoreSettings(
            uri=file.store.uri,
            collection=file.store.collection,
            namespace=file.store.namespace,
            timeout_s=file.store.timeout,
        ),
        sync=SyncSettings(
            interval_s=file.sync.interval,
            near_limit=file.sync.near_limit,
            deadline_s=file.sync.deadline,
            preload_count=file.sync.preload,
        ),
        denial=DenialSettings(
            error=file.denial.error,
            error_description=file.denial.error_description,
            error_uri=file.denial.error_uri,
            headers=tuple(dict.fromkeys(file.denial.headers)),
        ),
        guard=_guard(file.guard),
        events=EventSettings(
            per_minute=file.events.per_minute,
            keep_denials_s=file.events.keep_denials,
            request_id_header=file.events.request_id_header,
        ),
        statistics=StatisticsSettings(
            keep_s=file.statistics.keep,
            clients_per_minute=file.statistics.clients_per_minute,
            users_per_client=file.statistics.users_per_client,
            token_lifetime_s=file.statistics.token_lifetime,
        ),
        privacy=PrivacySettings(user_names=file.privacy.user_names, keys=file.privacy.name_keys()),
        max_keys=file.max_keys,
    )


def _guard(model: GuardModel) -> GuardSettings:
    def policies(kind: FailureKind, entries: list[Entry]) -> tuple[Policy, ...]:
        return tuple(_policy(name, limit) for name, limit in named(f"failures-{kind.value}", entries))

    return GuardSettings(
        mode=Mode(model.mode),
        limits=FailureLimits(**{kind.value: policies(kind, getattr(model.limits, kind.value)) for kind in FailureKind}),
        trusted_addresses=tuple(dict.fromkeys(model.trusted_addresses)),
        max_keys=model.max_keys,
    )


def _policy_set(file: FileModel) -> PolicySet:
    plans = {name: _rules(plan) for name, plan in file.plans.items()}
    clients = {client_id: _rules(client) for client_id, client in file.clients.items()}
    grants = {grant: Rules() for rules in (*plans.values(), *clients.values()) for grant in rules.grants}
    own = build_limits(file.limits)
    return PolicySet(
        mode=Mode.OFF if not file.enabled else Mode(file.mode),
        limits=Limits(client=own.client or (), user=own.user or (), client_total=own.client_total or ()),
        trusted=tuple(dict.fromkeys(file.trusted_clients)),
        clients=clients,
        endpoints={
            name: _place(endpoint, paths=tuple(endpoint.path), methods=tuple(endpoint.method))
            for name, endpoint in file.endpoints.items()
        },
        canary=_canary(file.canary) if file.canary else None,
        instance=file.instance or socket.gethostname(),
        plans=plans,
        grants=grants | _grants(file.grants),
    )


def _mode(switch: Switch) -> Mode | None:
    if not switch.enabled:
        return Mode.OFF
    return Mode(switch.mode) if switch.mode else None


def _rules(model: PlanModel) -> Rules:
    return Rules(
        mode=_mode(model),
        limits=build_limits(model.limits) if model.limits else None,
        plan=model.plan if isinstance(model, ClientModel) else None,
        grants=_grants(model.grants),
        endpoints={name: _place(place) for name, place in model.endpoints.items()},
    )


def _grants(models: Mapping[str, PlaceModel]) -> dict[str, Rules]:
    return {grant: _place(place) for grant, place in models.items()}


def _place(model: PlaceModel, *, paths: tuple[str, ...] = (), methods: tuple[str, ...] = ()) -> Rules:
    limits = build_limits(model.limits) if model.limits else None
    return Rules(mode=_mode(model), limits=limits, paths=paths, methods=methods)


def _canary(model: CanaryModel) -> Canary:
    percent = 100.0 if model.percent is None else float(model.percent)
    return Canary(percent=percent, salt=model.salt, instances=tuple(model.instances or ()))


def build_limits(model: LimitsModel) -> OwnLimits:
    """Return the limits that a section names itself."""

    def policies(kind: str, entries: list[Entry]) -> tuple[Policy, ...] | None:
        if kind not in model.model_fields_set:
            return None
        return tuple(_policy(name, limit) for name, limit in named(kind, entries))

    return OwnLimits(
        client=policies("client", model.client),
        user=policies("user", model.user),
        client_total=policies("client_total", model.client_total),
    )


def _policy(name: str, model: LimitModel) -> Policy:
    return Policy(
        name=name,
        limit=model.limit,
        window=Window.of(model.window, model.frames),
        estimator=model.estimator,
        count_denied=model.count_denied,
        mode=_mode(model),
    )


def find_clashes(policies: PolicySet) -> Iterator[str]:
    """Yield a problem for each place where two limits that meet in one request have the same name."""
    everywhere = set(_clashes(policies.limits_at("")[1]))
    for clash in sorted(everywhere):
        yield f"limits: {clash}"
    for path, limits in _places(policies):
        for clash in sorted(set(_clashes(limits)) - everywhere):
            yield f"{path}: {clash}"


def _places(policies: PolicySet) -> Iterator[tuple[str, Limits]]:
    """Yield all that has limits of its own, under the path of its key, with the limits that hold there."""
    for name in policies.endpoints:
        yield dotted(["endpoints", name]), policies.limits_at("", endpoint=name)[1]
    for grant in policies.grants:
        yield dotted(["grants", grant]), policies.limits_at("", grant_type=grant)[1]
    for client_id, rules in policies.clients.items():
        path = ["clients", client_id]
        plan = policies.plans.get(rules.plan or "", Rules())
        yield dotted(path), policies.limits_at(client_id)[1]
        for name in {**plan.endpoints, **rules.endpoints}:
            yield dotted([*path, "endpoints", name]), policies.limits_at(client_id, endpoint=name)[1]
        for grant in {**plan.grants, **rules.grants}:
            yield dotted([*path, "grants", grant]), policies.limits_at(client_id, grant_type=grant)[1]


def _clashes(limits: Limits) -> Iterator[str]:
    total = {policy.name for policy in limits.client_total}
    for kind, own in (("client", limits.client), ("user", limits.user)):
        for name in total & {policy.name for policy in own}:
            yield f"{kind} and client_total both have a limit with the name {name}; give each a name of its own"
