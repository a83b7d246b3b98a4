"""Looks at what users install with this package: is anything withdrawn, is anything known to be vulnerable?

Every dependency and extra for production, at the newest versions that setup.cfg allows. Advisories are asked for
with pip-audit; where nobody tells them, that is said, and the rest holds all the same.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXTRAS = ("charts", "cli", "otel", "prometheus")
KNOWN_TO_BE_VULNERABLE = "flask==0.12.2"
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input")


def main() -> int:
    """Return the exit code: 1 if anything is wrong."""
    broken = subprocess.run([*PIP, "check"], capture_output=True, text=True, check=False)
    if broken.returncode:
        print(broken.stdout, end="")
        return 1
    found = resolve()
    pins = [f"{item['metadata']['name']}=={item['metadata']['version']}" for item in found]
    withdrawn = [pin for pin, item in zip(pins, found, strict=True) if item.get("is_yanked")]
    if withdrawn:
        print(f"withdrawn from the index: {', '.join(withdrawn)}")
        return 1
    print(f"{len(pins)} packages that users install: they fit together, and none is withdrawn")
    if not has_advisories():
        print("advisories were not looked up: nobody here tells them")
        return 0
    return audit(pins)


def resolve() -> list[dict[str, object]]:
    """Return what pip would install into an empty environment."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        what = f"{ROOT}[{','.join(EXTRAS)}]"
        options = ["--dry-run", "--ignore-installed", f"--report={report}"]
        done = subprocess.run([*PIP, "install", *options, what], capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit("pip does not find versions that fit together")
        items = json.loads(report.read_text())["install"]
    return [item for item in items if item["metadata"]["name"] != "oauth_ratelimit"]


def has_advisories() -> bool:
    """Return whether advisories can be asked for here. A mirror of the index may not know them."""
    return bool(audit([KNOWN_TO_BE_VULNERABLE], quietly=True))


def audit(pins: Sequence[str], *, quietly: bool = False) -> int:
    """
    Ask for advisories on these versions, and return 1 if there are any; if asked quietly, 0 where nobody answers, too.
    """
    with tempfile.TemporaryDirectory() as folder:
        requirements = Path(folder, "requirements.txt")
        requirements.write_text("\n".join(pins))
        options = ["--strict", "--disable-pip", "--no-deps", "--timeout=5", f"--requirement={requirements}"]
        command = [sys.executable, "-m", "pip_audit", *options]
        if not quietly:
            return subprocess.run(command, check=False).returncode
        done = subprocess.run([*command, "--format=json"], capture_output=True, text=True, check=False)
        return int('"vulns": [{' in done.stdout)


sys.exit(main())
