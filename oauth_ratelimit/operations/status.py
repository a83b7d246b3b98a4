"""
How all of it stands: the mode, the database, the instances.
"""

from oauth_ratelimit.operations.context import Desk
from oauth_ratelimit.operations.serialize import Record, beat_data, layer_data


class Status:
    """
    One look at the whole.

    Args:
        desk: What the operator works with.

    Attributes:
        policies: What instances go by.

        mode_layer: Where the mode comes from.

        override_count: How many overrides are in force.

        facts: What there is to know about the server.

        beats: What each instance has last said of itself.
    """

    def __init__(self, desk: Desk) -> None:
        self.policies = desk.policies
        self.mode_layer = desk.layers.of_mode("")
        self.override_count = len(desk.overrides)
        self.facts = desk.documents.facts()
        self.beats = desk.heartbeats.read(self.facts.clock_s)

    def data(self) -> Record:
        """
        Return it for programs.
        """
        canary, facts = self.policies.canary, self.facts
        return {
            "mode": self.policies.mode.value,
            "mode_origin": layer_data(self.mode_layer),
            "canary": canary and {"percent": canary.percent, "instances": canary.instances},
            "override_count": self.override_count,
            "mongodb": {"version": facts.version, "document_count": facts.document_count},
            "instances": [beat_data(beat, facts.clock_s) for beat in self.beats],
        }
