"""The report on a reader's own MongoDB."""

import re
import subprocess
import sys


def test_report_names_the_server_and_what_was_run_there(mongodb: str) -> None:
    command = [sys.executable, "-m", "tests.store.report", mongodb, "-n0", "-k", "test_mark_is_dated and mongodb"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    report = done.stdout.partition("Report:")[2]
    assert 0 == done.returncode, done.stdout
    assert re.search(r"MongoDB \d+\.\d+\.\d+", report)
    assert "race of 4 instances for 200 keys: each hit once" in report
    assert " passed, 0 failed" in report
    assert mongodb not in report
