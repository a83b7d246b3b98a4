"""
Looks at what users install with this package: is anything withdrawn, is anything known to be vulnerable?

Every dependency and extra for production, at the newest versions that setup.cfg allows. Advisories are asked for at
pypi.org; where it does not tell them, that is said, and the rest holds all the same.
"""

import json
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXTRAS = ("charts", "cli", "otel", "prometheus")
PROBE = "https://pypi.org/pypi/flask/0.12.2/json"  # of which advisories are known
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input")


def main() -> int:
    """
    Return the exit code: 1 if anything is wrong.
    """
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
        print("advisories were not looked up: pypi.org is out of reach, or does not tell them")
        return 0
    return audit(pins)


def resolve() -> list[dict[str, object]]:
    """
    Return what pip would install into an empty environment.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        what = f"{ROOT}[{','.join(known_extras())}]"
        options = ["--dry-run", "--ignore-installed", f"--report={report}"]
        done = subprocess.run([*PIP, "install", *options, what], capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit("pip does not find versions that fit together")
        items = json.loads(report.read_text())["install"]
    return [item for item in items if item["metadata"]["name"] != "oauth_ratelimit"]


def known_extras() -> list[str]:
    """
    Return those of ``EXTRAS`` that there are.
    """
    text = (ROOT / "setup.cfg").read_text()
    return [extra for extra in EXTRAS if f"\n{extra} =\n" in text]


def has_advisories() -> bool:
    """
    Return whether pypi.org answers, and knows what is known to be vulnerable. A mirror of it may not.
    """
    try:
        with urllib.request.urlopen(PROBE, timeout=5) as answer:
            return bool(json.load(answer)["vulnerabilities"])
    except (OSError, ValueError, KeyError):
        return False


def audit(pins: Sequence[str]) -> int:
    """
    Ask for advisories on these versions.
    """
    with tempfile.TemporaryDirectory() as folder:
        requirements = Path(folder, "requirements.txt")
        requirements.write_text("\n".join(pins))
        options = ["--strict", "--disable-pip", "--no-deps", f"--requirement={requirements}"]
        return subprocess.run([sys.executable, "-m", "pip_audit", *options], check=False).returncode


sys.exit(main())
