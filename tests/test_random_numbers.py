"""Random numbers: an application may seed and use Python's common generator; nothing of ours draws from it."""

import ast
import random
import re
import time
from pathlib import Path

import oauth_ratelimit
from oauth_ratelimit import load_config
from oauth_ratelimit.background.live_settings import LiveSettings
from oauth_ratelimit.background.worker import Worker
from oauth_ratelimit.observe.observer import Callbacks

PACKAGE = Path(oauth_ratelimit.__file__).parent
OWN = {"Random", "SystemRandom"}


def test_denials_and_cycles_leave_the_common_generator_as_it_is(mongo_uri: str) -> None:
    """So what denials show of it predicts nothing of the application. Their ids differ all the same."""
    found = load_config({"mode": "enforce", "limits": {"user": ["1/hour"]}, "store": {"uri": mongo_uri}})
    random.seed(7)
    before = random.getstate()
    worker = Worker(LiveSettings(found, lambda: None), callbacks=Callbacks(has_grant=bool), clock=time.time)
    ids = set()
    for number in range(300):
        worker.limiter.check("app", f"user-{number}")
        ids.add(worker.limiter.check("app", f"user-{number}").decision_id)
        if number % 50 == 0:
            worker.after_cycle(worker.health_monitor.sync())
    worker.stop()

    assert before == random.getstate()
    assert 300 == len(ids)
    assert all(re.fullmatch("[0-9a-f]{16}", str(each)) for each in ids)


def test_no_module_uses_a_function_of_the_common_generator() -> None:
    used = [
        f"{path}: {ast.unparse(node)}"
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if (isinstance(node, ast.Import) and "random" in {each.name for each in node.names})
        or (isinstance(node, ast.ImportFrom) and node.module == "random" and {each.name for each in node.names} - OWN)
    ]
    assert [] == used
