"""How many different users there were, in 256 small numbers: HyperLogLog.

The numbers of two processes, or of two minutes, are merged by taking the larger of each, so that nobody is counted
twice and no order, repetition or delay of writes matters. The estimate is off by 6.5 % (standard error), by less below
about 100 users. Source: Flajolet, Fusy, Gandouet, Meunier, "HyperLogLog" (2007).
"""

import hashlib
import math
from collections.abc import Iterable, Mapping

REGISTER_COUNT = 256
MAX_RANK = 57  # of the 56 bits that are left beside the register's 8

_BIAS = 0.7213 / (1 + 1.079 / REGISTER_COUNT)
_INVERSE = tuple(2.0**-rank for rank in range(MAX_RANK + 1))

Registers = Mapping[int, int]
"""By register, 0 to 255, the highest rank seen, 1 to 57. A missing one has seen nothing."""


def register_of(name: str) -> tuple[int, int]:
    """Return a name's register and its rank there. The same in every process."""
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return digest[0], MAX_RANK - int.from_bytes(digest[1:], "big").bit_length()


def merged(many: Iterable[Registers]) -> dict[int, int]:
    """Return the registers of all the names that any of them have seen."""
    union: dict[int, int] = {}
    for registers in many:
        merge_into(union, registers)
    return union


def merge_into(union: dict[int, int], registers: Registers) -> None:
    """Add what some registers have seen to others."""
    for register, rank in registers.items():
        if rank > union.get(register, 0):
            union[register] = rank


def estimate_distinct(registers: Registers) -> float:
    """Return how many different names the registers have seen, about."""
    empty_count = REGISTER_COUNT - len(registers)
    inverse = empty_count + sum(_INVERSE[rank] for rank in registers.values())
    estimate = _BIAS * REGISTER_COUNT**2 / inverse
    if estimate <= 2.5 * REGISTER_COUNT and empty_count:
        return REGISTER_COUNT * math.log(REGISTER_COUNT / empty_count)
    return estimate
