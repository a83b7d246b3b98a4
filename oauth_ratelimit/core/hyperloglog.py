"""HyperLogLog: estimate of the number of distinct users in 256 small registers.

Registers of two processes or minutes are merged by taking the larger value of each, so that nobody is counted twice and
order, repetition and delay of writes do not matter. The standard error is 6.5 %, and less below about 100 users.
Source: Flajolet, Fusy, Gandouet, Meunier, "HyperLogLog" (2007).
"""

import hashlib
import math
from collections.abc import Mapping

REGISTER_COUNT = 256
MAX_RANK = 57  # 56 bits remain beside the 8 of the register

_BIAS = 0.7213 / (1 + 1.079 / REGISTER_COUNT)
_INVERSE = tuple(2.0**-rank for rank in range(MAX_RANK + 1))

Registers = Mapping[int, int]
"""Highest rank, 1 to 57, by register, 0 to 255. A missing register is empty."""


def register_of(name: str) -> tuple[int, int]:
    """Return the register of a name and its rank there. They are the same in every process."""
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return digest[0], MAX_RANK - int.from_bytes(digest[1:], "big").bit_length()


def merge_into(union: dict[int, int], registers: Registers) -> None:
    """Add registers to others in place."""
    for register, rank in registers.items():
        if rank > union.get(register, 0):
            union[register] = rank


def estimate_distinct(registers: Registers) -> float:
    empty_count = REGISTER_COUNT - len(registers)
    inverse = empty_count + sum(_INVERSE[rank] for rank in registers.values())
    estimate = _BIAS * REGISTER_COUNT**2 / inverse
    if estimate <= 2.5 * REGISTER_COUNT and empty_count:
        return REGISTER_COUNT * math.log(REGISTER_COUNT / empty_count)
    return estimate
