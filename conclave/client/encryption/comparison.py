"""The code that two people compare, to exclude a man in the middle. Pure."""

import hashlib
from dataclasses import dataclass

ROUNDS = 5_200
"""Iterations of the hash, which make it expensive to search for keys with the same code."""

_DIGITS, _GROUP = 30, 5
_WORDS = 12
_LABEL = b"Conclave comparison code 1"

_WORD_LIST = """
acid acorn actor agent alarm album alley amber anchor angle ankle apple apron arch arena arrow atlas attic autumn
award bacon badge baker balcony bamboo banana banjo barn basin basket beach beard beaver bell bench berry bishop
blanket blossom boat bonus book border bottle bowl branch bread brick bridge bronze brush bucket buffalo bullet
butter button cabin cable cactus camel camera canal candle canyon carbon carpet carrot castle cattle cave cedar
cellar cement chair chalk cheese cherry chess chimney circus citrus clay cliff clock cloud clover coach coat cobra
cocoa coffee comet copper coral corner cotton cousin coyote crab cradle crane crater cricket crown crystal curtain
dagger dairy dancer desert diamond dinner doctor dolphin donkey dragon drawer drum eagle earth easel echo eclipse
elbow elephant ember engine fabric falcon farmer feather fence fiddle finger flag flame flute forest fossil fountain
fox galaxy garden garlic ginger giraffe glacier glove goat gravel guitar hammer harbor hazel helmet hermit honey
horse hotel hunter igloo insect iron island ivory jacket jaguar jelly jungle kettle kitchen kitten ladder lagoon
lantern laser lemon leopard library lion lizard lobster magnet mango maple marble meadow medal melon mirror monkey
mosaic motor mountain museum mustard napkin needle nickel noodle oasis ocean olive onion orange orbit orchid otter
oyster paddle palace panda paper parrot pebble pencil pepper piano pigeon pillow pilot pine planet plum pocket pony
potato prince pumpkin puzzle pyramid rabbit radio raven ribbon river robot rocket rose saddle salmon sandal saturn
scissors shadow shovel silver singer spider spoon squirrel statue summer sunset temple tiger
"""

WORDS = _WORD_LIST.split()
"""256 words, one for each byte value."""


@dataclass(frozen=True)
class ComparisonCode:
    """A code in two equivalent forms. ``digits``: 6 groups of 5 digits. ``words``: 12 words."""

    digits: tuple[str, ...]
    words: tuple[str, ...]


def comparison_code(one: str, other: str) -> ComparisonCode:
    """Return the code of two fingerprints, independent of their order.

    Each form has about 2^96 values. Raises ValueError for an invalid fingerprint.
    """
    pair = sorted(_read(each) for each in (one, other))
    value = _LABEL + b"".join(pair)
    for _ in range(ROUNDS):
        value = hashlib.sha512(value + pair[0] + pair[1]).digest()
    number = int.from_bytes(value[:32], "big") % 10**_DIGITS
    digits = f"{number:0{_DIGITS}}"
    return ComparisonCode(
        tuple(digits[place : place + _GROUP] for place in range(0, _DIGITS, _GROUP)),
        tuple(WORDS[byte] for byte in value[32 : 32 + _WORDS]),
    )


def _read(fingerprint: str) -> bytes:
    digest = bytes.fromhex(fingerprint)
    if len(digest) != hashlib.sha256().digest_size:
        raise ValueError("a fingerprint has 64 hexadecimal digits")
    return digest
