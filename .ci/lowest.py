"""Prints the lowest version that setup.cfg allows of each dependency, those of the given extras included."""

import configparser
import re
import sys
from pathlib import Path


def main(extras: list[str]) -> None:
    """Print one pin per line, without packages that have no lower bound."""
    setup = configparser.ConfigParser()
    setup.read(Path(__file__).parents[1] / "setup.cfg")
    allowed = [setup["options"]["install_requires"], *(setup["options.extras_require"][extra] for extra in extras)]
    for line in "\n".join(allowed).split("\n"):
        if pin := re.match(r"([\w.-]+)>=([\w.]+)", line):
            print(f"{pin[1]}=={pin[2]}")


main(sys.argv[1:])
