"""The pictures of what a request pays."""

from collections.abc import Iterable, Mapping

from benchmarks.charts.goal import Goal
from benchmarks.charts.picture import Picture
from benchmarks.charts.rows import Look, Row, Rows


def _rows(prefix: str, names: Iterable[str], look: Look = Look.OURS) -> list[Row]:
    return [Row(name, f"{prefix}{name}", look) for name in names]


def _decision(group: str, title: str, ours: Mapping[str, str], others: Iterable[str], *, goal: str = "") -> Rows:
    """Return the panel of a group of times: ours by label, the others by name."""
    prefix = f"decision/{group}/"
    rows = [Row(label, f"decision/{name}") for label, name in ours.items()]
    return Rows(
        title,
        "ns per decision, log scale; lower is better",
        [*rows, *_rows(prefix, others, Look.OTHER)],
        goal=Goal("goal: limits sliding / {}", rows[0].name, prefix + goal) if goal else None,
        is_log=True,
    )


LIBRARIES = ("limits sliding", "limits moving", "throttled-py", "pyrate-limiter")
DECISION = Picture(
    [
        _decision(
            "one key",
            "One key",
            {"ours": "one key/ours", "ours, denied": "one key/ours, denied"},
            ["limits fixed", "limits sliding, denied", *LIBRARIES],
            goal="faster than limits sliding",
        ),
        _decision(
            "100,000 keys",
            "100,000 keys in random order",
            {
                "ours": "100,000 keys/ours",
                "ours, after a cycle": "100,000 keys/ours, first since the last cycle",
                "ours, in a new frame": "100,000 keys/ours, first in a frame",
            },
            LIBRARIES,
            goal="ours: faster than limits sliding",
        ),
        _decision(
            "4 threads",
            "One key, 4 threads",
            {"ours": "4 threads/ours"},
            LIBRARIES,
            goal="faster than limits sliding",
        ),
        _decision(
            "shared store",
            "Shared store: ours decides in memory",
            {"ours, on one key": "one key/ours"},
            ["limits on Redis", "limits on MongoDB"],
        ),
        Rows(
            "Instructions",
            "instructions per decision; lower is better",
            [
                Row(f"{whose}{variant}", f"decision/instructions/{whose}{variant}", look)
                for variant in ("", ", many keys", ", denied")
                for whose, look in (("ours", Look.OURS), ("limits", Look.OTHER))
            ],
        ),
    ],
    columns=2,
    size=(11, 8.6),
)


def _endpoint(title: str, group: str, unit: str) -> Rows:
    prefix = f"endpoint/{group}/added by "
    return Rows(
        title,
        f"{unit} added to a request; lower is better",
        [
            Row("ours", f"{prefix}ours"),
            Row("ours, without headers", f"{prefix}ours without quota headers"),
            *_rows(prefix, ["bare bones", "five headers"], Look.LEAST),
            *_rows(prefix, ["Flask-Limiter moving", "Flask-Limiter sliding"], Look.OTHER),
        ],
        goal=Goal(
            "goal: {} of Flask-Limiter moving",
            f"{prefix}ours",
            f"endpoint/{group}/ours, of what Flask-Limiter moving adds",
        ),
    )


DIRECT, GUNICORN = "called directly", "through gunicorn"
ENDPOINT = Picture(
    [
        _endpoint(f"Instructions, {DIRECT}", "instructions, client_credentials", "instructions"),
        _endpoint(f"CPU time, {DIRECT}", "WSGI, client_credentials", "us"),
        _endpoint(f"Instructions, {GUNICORN}", "gunicorn gthread, client_credentials, instructions", "instructions"),
        _endpoint(f"CPU time, {GUNICORN}", "gunicorn gthread, client_credentials", "us"),
    ],
    columns=2,
    size=(11, 6.6),
)
