"""The simulated MongoDB answers as the real one does, to what the counter store sends in the simulated histories."""

import time
from typing import Any, cast

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from oauth_ratelimit.core.key import Key
from oauth_ratelimit.core.tier import Series
from oauth_ratelimit.store.base import Change
from oauth_ratelimit.store.mongo.client import Connection
from oauth_ratelimit.store.mongo.counters import MongoStore
from oauth_ratelimit.store.mongo.document import document_id
from tests.simulation.history import DAMAGE
from tests.support.simulated_mongo import Server, SimulatedMongo
from tests.support.stores import FAR_S

KEYS = (Key("shop", "ann"), Key("shop", None), Key("shop", None, "client_total"))
SERIES, OTHER_SERIES = Series(6), Series(60, count_denied=True)
STARTS_S = (0, 1_800_000_000, 1_800_000_060)
FRAMES = st.lists(st.tuples(st.sampled_from((SERIES, OTHER_SERIES)), st.sampled_from(STARTS_S)), max_size=3)
WRITERS = st.sampled_from(("a", "b"))
CHANGES = st.tuples(
    st.sampled_from(KEYS),
    st.sampled_from((None, 0, 0, 0, 1)),  # how far off the version is that the change names; None: no document
    st.dictionaries(
        st.sampled_from((SERIES, OTHER_SERIES)), st.dictionaries(st.sampled_from(STARTS_S), st.integers(1, 9))
    ),
    st.sampled_from((-60.0, 0.0, 60.0)),  # of the end
    FRAMES,
    st.lists(WRITERS),
    st.dictionaries(st.sampled_from((SERIES, OTHER_SERIES)), st.sampled_from((60, 600))),
    st.sampled_from((None, None, 0, 1)),  # how far off the writer's mark is that the change names; None: no mark
)
STEPS = st.one_of(
    st.tuples(st.just("write"), WRITERS, st.lists(CHANGES, min_size=1, max_size=4, unique_by=lambda change: change[0])),
    st.tuples(st.just("remove marks"), WRITERS, st.dictionaries(st.sampled_from(KEYS), st.integers(0, 6), min_size=1)),
    st.tuples(st.just("damage"), st.sampled_from(KEYS), st.sampled_from(DAMAGE)),
)


def plain(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document without the dates of its marks."""
    return {**document, "seen": sorted(document.get("seen", {}))}


@settings(
    max_examples=30,
    phases=[Phase.generate],  # to make an example smaller takes minutes on a real server
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(steps=st.lists(STEPS, min_size=5, max_size=25))
def test_simulated_mongodb_does_what_a_real_one_does(connection: Connection, steps: list[Any]) -> None:
    collection, server = connection.collection("ratelimits"), Server(time.time)
    real, simulated = MongoStore(connection), MongoStore(cast(Connection, SimulatedMongo(server)))
    collection.delete_many({})
    for number, (action, who, what) in enumerate(steps):
        if action == "damage":
            collection.update_one({"_id": document_id(who)}, {"$set": {what[0]: what[1]}})
            for identity, document in server.committed.documents.items():
                if document["_id"] == document_id(who):
                    server.replace(identity, {**document, what[0]: what[1]})
        elif action == "remove marks":
            real.remove_marks(who, what)
            simulated.remove_marks(who, what)
        else:
            found = real.read(KEYS)
            known = {key: snapshot.version for key, snapshot in found.items()}
            changes = []
            for key, offset, hits, later_s, frames, writers, horizons, mark in what:
                version = None if offset is None else known.get(key, 7) + offset
                next_version = 100 * (number + 1) if version is None else version + 1
                change = Change(key, version, next_version, number, hits, FAR_S + later_s, frames, writers, horizons)
                if mark is not None and key in found:
                    change.mark, change.last_version = found[key].writers.get(who, 0) + mark, known[key] + 1
                changes.append(change)
            expected, result = (store.compare_and_set(who, changes) for store in (real, simulated))
            assert (sorted(expected.lost), sorted(expected.rejected)) == (sorted(result.lost), sorted(result.rejected))
        assert real.read(KEYS) == simulated.read(KEYS)
        stored = {str(document["_id"]): plain(document) for document in collection.find()}
        assert stored == {str(document["_id"]): plain(document) for document in server.documents()}
    assert {*real.latest(9)} == {*simulated.latest(9)}
