"""How all of it stands: the mode, the database, the instances."""

from oauth_ratelimit.operations.context import OperatorContext
from oauth_ratelimit.operations.serialize import Record, beat_data, origin_data


class Status:
    """One look at the whole.

    Args:
        desk: What the operator works with.

    Attributes:
        policies: What instances go by.
        mode_layer: Where the mode comes from.
        override_count: How many overrides are in force.
        facts: What there is to know about the server.
        beats: What each instance has last said of itself.
    """

    def __init__(self, context: OperatorContext) -> None:
        self.policies = context.policies
        self.mode_origin = context.origins.of_mode("")
        self.override_count = len(context.overrides)
        self.facts = context.documents.facts()
        self.beats = context.heartbeats.read(self.facts.clock_s)

    def data(self) -> Record:
        """Return it for programs."""
        canary, facts = self.policies.canary, self.facts
        return {
            "mode": self.policies.mode.value,
            "mode_origin": origin_data(self.mode_origin),
            "canary": canary and {"percent": canary.percent, "instances": canary.instances},
            "override_count": self.override_count,
            "mongodb": {"version": facts.version, "document_count": facts.document_count},
            "instances": [beat_data(beat, facts.clock_s) for beat in self.beats],
        }
