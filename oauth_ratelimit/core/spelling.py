"""One form for all spellings of a name that a server may take for the same user or client."""

import re
import unicodedata
from contextlib import suppress
from functools import lru_cache
from math import ceil

from oauth_ratelimit.core.key import storable_name

MAX_CLAIM_LENGTH = 400  # with an address before it, such a name is still stored as it is
MAX_FOLDED_LENGTH = 256  # characters of a name beyond ASCII; some expand 18-fold
LONG_NAME = "~"  # of all longer ones: hardly anybody has one, and no spelling makes another of it

_FILLERS = frozenset("\u115f\u1160\u3164\uffa0\ufe73\u1cf2\u1cf3")  # invisible, but letters to Unicode
_BASE_LETTERS = {"æ": "ae", "œ": "oe", "ð": "d", "þ": "th", "ı": "i", "ŋ": "n", "ß": "s"}
_BASE_LETTERS |= {"\ua79b": "a", "\ua79d": "o", "\ua79f": "u"}  # of Volapük
_LATIN = re.compile(r"LATIN .*?(?:LETTER|LIGATURE) (?:\S+ )*?([A-Z]{1,2})(?: |$)")
_LETTERS = frozenset({"Lu", "Ll", "Lt", "Lo"})


def folded(name: str) -> str:
    """Return one form for all spellings of a name that a server may take for the same user or client.

    Otherwise guesses in capitals, with accents or strokes, with digits of another script, or with invisible characters
    would be counted apart, which databases ignore by default. Two names with the same form share their failures at one
    address, and nothing else.
    """
    name = name.strip()
    if not (name.isascii() and name.isprintable()):
        if len(name) > MAX_FOLDED_LENGTH:
            return LONG_NAME
        # The letters come first, because casefold makes letters of some accents, and again for what it has made.
        name = unicodedata.normalize("NFC", _plain(_plain(name).casefold()))
        if len(name) > MAX_FOLDED_LENGTH and not name.isascii():
            return LONG_NAME
    return storable_name(name.strip().casefold(), MAX_CLAIM_LENGTH)


def _plain(name: str) -> str:
    return "".join(map(_base_of, name))


@lru_cache(maxsize=10_000)
def _base_of(letter: str) -> str:
    """Return the letters and digits that a character is sorted with; nothing for a mark or a symbol.

    Databases compare the first level of the Unicode collation algorithm, or less. Python has no table of it, but the
    names of the characters say nearly the same.
    """
    if letter.isascii():
        return letter if letter.isprintable() else ""
    if letter.lower() in _BASE_LETTERS:
        return _BASE_LETTERS[letter.lower()]
    parts = unicodedata.normalize("NFKD", letter)
    if parts != letter:
        return "".join(map(_base_of, parts if len(parts) == 1 else parts.lstrip(" ")))  # a mark may stand on a space
    category, name = unicodedata.category(letter), unicodedata.name(letter, "")
    if category[0] == "N":
        return str(ceil(unicodedata.numeric(letter)))
    if category == "Zs":
        return " "
    latin = _LATIN.search(name)
    if latin and category != "Cf":
        return latin[1].lower()
    is_letter = category in _LETTERS or name.startswith("COMBINING CYRILLIC LETTER ")
    if not is_letter or letter in _FILLERS or letter > "\uffff":  # older collations take all of those for one
        return ""
    plain = name.removeprefix("COMBINING ").partition(" WITH ")[0].replace("KATAKANA", "HIRAGANA")
    plain = re.sub(" LETTER (?:SMALL|FINAL) ", " LETTER ", plain)
    for candidate in (plain, plain.replace(" LETTER ", " SMALL LETTER ")):
        with suppress(KeyError):
            return unicodedata.lookup(candidate)
    return letter
