"""Which characters a name may have: the table of the docs, and every character of Unicode by its category."""

import sys
import unicodedata

import pytest
from marshmallow import ValidationError

from conclave.wire.fields import ALIAS_RULE, FINGERPRINT_RULE, PATTERN_RULE
from conclave.wire.text_rules import TextRule

SCOTLAND = "\U0001f3f4\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f"
DIRECTION = {0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)}
UNSEEN = {
    *(0xAD, 0x200B, 0xFEFF, 0xE0001),
    *range(0x2060, 0x2066),
    *range(0x206A, 0x2070),
    *range(0xFFF9, 0xFFFC),
    *range(0x1BCA0, 0x1BCA4),
    *range(0x1D173, 0x1D17B),
    *range(0xE0020, 0xE0080),
}


def is_taken(text: str) -> bool:
    try:
        ALIAS_RULE(text)
    except ValidationError:
        return False
    return True


def is_refused(character: str) -> bool:
    category = unicodedata.category(character)
    return category in {"Cc", "Cs", "Zl", "Zp"} or (category == "Cf" and ord(character) in DIRECTION | UNSEEN)


def test_each_character_is_taken_or_refused_by_its_category() -> None:
    everything = list(map(chr, range(sys.maxunicode + 1)))
    for character in filter(is_refused, everything):
        assert not is_taken(character), f"U+{ord(character):04X}"
    taken = "".join(character for character in everything if not is_refused(character))
    for begin in range(0, len(taken), 64):
        assert is_taken(taken[begin : begin + 64]), f"after U+{ord(taken[begin]):04X}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\U0001f468\u200d\U0001f469\u200d\U0001f467",  # a family, joined
        "\u0646\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",  # Persian, with a ZWNJ
        "\u0915\u094d\u200d\u0937",  # Devanagari, with a ZWJ
        "\u05d0\u05d1\u05d2 abc",
        "\u2764\ufe0f",
        "\u0600\u0661",
        SCOTLAND,
        SCOTLAND * 9 + "x",
        "\U0001f600" * 64,
        "\ue000\uffff",
    ],
)
def test_scripts_and_emoji_are_taken(text: str) -> None:
    assert is_taken(text)


@pytest.mark.parametrize(
    "text",
    [
        *("\x9b31m", "a\x85b", "\u202egnp.exe", "a\u2028b", "a\u2029b", "a\n", "\u200b", "\ufeffadmin", "\u2060"),
        "a\U000e0041",
        SCOTLAND[:-1],
        SCOTLAND[1:],
        SCOTLAND + "\U000e0067",
        "\U0001f3f4" + SCOTLAND[1:-1] * 9 + "\U000e007f",
        SCOTLAND * 9 + "xy",
        "x" * 65,
    ],
)
def test_what_is_unseen_or_too_long_is_refused(text: str) -> None:
    assert not is_taken(text)


@pytest.mark.parametrize("rule", [PATTERN_RULE, FINGERPRINT_RULE])
def test_other_texts_go_by_the_same_characters(rule: TextRule) -> None:
    rule("\u00e9" * 65)
    for refused in ("\x9b", "\u202e", "\u2028", "\U000e0041"):
        with pytest.raises(ValidationError):
            rule(refused)
