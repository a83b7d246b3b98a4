"""The pictures of ``docs/performance.md``."""

from collections.abc import Collection, Mapping
from pathlib import Path

from benchmarks import scale
from benchmarks.charts.cycles import CONFLICTS, FLUSH, PULL, STALL
from benchmarks.charts.picture import Picture
from benchmarks.charts.requests import DECISION, ENDPOINT
from benchmarks.results import load

IMAGES = Path(__file__).parents[2] / "docs" / "images"

PICTURES: Mapping[str, Picture] = {
    "decision": DECISION,
    "endpoint": ENDPOINT,
    "flush": FLUSH,
    "conflicts": CONFLICTS,
    "stall": STALL,
    "pull": PULL,
}
"""By the last part of their files' names."""


def path_of(name: str, images: Path = IMAGES) -> Path:
    """Return the file of a picture."""
    return images / f"performance-{name}.svg"


def draw(topics: Collection[str] | None = None) -> None:
    """Draw the pictures of some topics, or all, that of scale included."""
    kept = {str(entry["name"]): entry for entry in load()}
    for name, picture in PICTURES.items():
        if topics is None or picture.topic in topics:
            picture.draw(path_of(name), kept)
    if topics is None or "scale" in topics:
        scale.draw()
