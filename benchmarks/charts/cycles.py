"""The pictures of what a sync cycle costs."""

from collections.abc import Mapping

from benchmarks.charts.goal import Goal
from benchmarks.charts.lines import Lines
from benchmarks.charts.picture import Picture

COUNTS = ("1,000", "10,000", "100,000")
UNIT = "us per key; lower is better"
AGAINST = "against one bulk_write"


def _flush(title: str, servers: str = "") -> Lines:
    groups = [f"flush/{servers}{count} keys" for count in COUNTS]
    return Lines(
        title,
        UNIT,
        "keys",
        COUNTS,
        {way: [f"{group}/{way}" for group in groups] for way in ("sync()", "one bulk_write", "bulk_writes of 500")},
        goals={
            place: Goal("{} ×", f"{group}/sync()", ratio=f"{group}/{AGAINST}") for place, group in enumerate(groups)
        },
        goal_label="goal of sync(), as a multiple of one bulk_write",
    )


FLUSH = Picture([_flush("One server"), _flush("Replica set", "replica set, ")], columns=2, size=(11, 4.6), shares=False)


def _conflicts(title: str, unit: str, what: str, goals: Mapping[int, Goal]) -> Lines:
    shares = {"none": "", "1 %": ", 1 % conflicts", "10 %": ", 10 % conflicts", "50 %": ", 50 % conflicts"}
    groups = [*(f"{count} keys" for count in COUNTS), "replica set, 10,000 keys"]
    return Lines(
        title,
        unit,
        "keys that another instance has written meanwhile",
        list(shares),
        {group: [f"flush/{group}{share}/{what}" for share in shares.values()] for group in groups},
        goals=goals,
    )


CONFLICTS = Picture(
    [
        _conflicts("A cycle with conflicts", UNIT, "sync()", {}),
        _conflicts(
            "The same, against one bulk_write",
            "times one bulk_write; lower is better",
            AGAINST,
            {
                0: Goal("{}", f"flush/10,000 keys/{AGAINST}"),
                2: Goal("{}", f"flush/10,000 keys, 10 % conflicts/{AGAINST}"),
            },
        ),
    ],
    columns=2,
    size=(11, 4.6),
)

QUANTILES = ("p50", "p99", "p99.9", "longest")
STALL = Picture(
    [
        Lines(
            "Requests while another thread flushes 100,000 keys",
            "ms, log scale; lower is better",
            "latency of requests",
            QUANTILES,
            {
                way: [f"flush/stall, {way}/{quantile}" for quantile in QUANTILES]
                for way in ("batches of 500", "batches of 100", "batches of 1000", "bare bulk_write of 500")
            },
            goals={2: Goal("{} ms", "flush/stall, batches of 500/p99.9")},
            goal_label="goal for batches of 500",
            is_log=True,
        )
    ],
    columns=1,
    size=(8, 4.4),
)


def _pull(title: str, clock: str) -> Lines:
    counts = ("0", "500", "5,000")
    ways = (
        "asking for those that matter",
        "asking for those of them that changed",
        "index on the time of change",
        "change stream",
    )
    return Lines(
        title,
        "ms per round, log scale; lower is better",
        "keys of 10,000 that others have written since the last round",
        counts,
        {way: [f"pull/{count} of 10,000 keys written, 500 matter/{way}{clock}" for count in counts] for way in ways},
        is_log=True,
    )


PULL = Picture(
    [_pull("How long a round takes", ""), _pull("CPU time of the instance", ", client CPU")], columns=2, size=(11, 4.6)
)
