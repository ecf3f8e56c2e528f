"""Rules for names and other short texts of users. They reject characters that could deceive a reader."""

import re
from typing import Any

from marshmallow import ValidationError, validate

_INVISIBLE = (
    r"\x00-\x1f\x7f-\x9f"  # controls (Cc)
    r"\u2028\u2029"  # ends of lines and paragraphs (Zl, Zp)
    r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # change the direction of writing
    r"\u2060-\u2064\u206a-\u206f"  # invisible operators, and deprecated neighbours
    r"\u00ad\u200b\ufeff\ufff9-\ufffb"  # soft hyphen, zero-width spaces, annotations
)
"""The rejected characters of the first plane, as a regular expression range for Python and JSON Schema.

Of the category Cf it permits visible characters, such as the Arabic number sign, and those that scripts need: U+200C,
U+200D and U+180E.
"""

_INVISIBLE_BEYOND = re.compile(
    "[\ud800-\udfff\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0001\U000e0020-\U000e007f]"
)
"""The other rejected characters: surrogates (Cs), controls of shorthand and musical notation, and tags.

The JSON Schema omits them: implementations differ on characters beyond the first plane.
"""

_FLAG = re.compile("\U0001f3f4[\U000e0030-\U000e0039\U000e0061-\U000e007a]{3,6}\U000e007f")
"""The flag of a region, such as Scotland: the only permitted use of tags."""


class TextRule(validate.Regexp):
    """Checks that a text has no invisible characters, and none that change the display of others."""

    def __init__(self, most: int | None, error: str) -> None:
        """``most``: the maximum number of characters; None: unlimited."""
        super().__init__(rf"[^{_INVISIBLE}]{{0,{'' if most is None else most}}}\Z", error=error)

    def __call__(self, value: Any) -> Any:
        """Return the text. Raises ValidationError."""
        if _INVISIBLE_BEYOND.search(_FLAG.sub("", value)):
            raise ValidationError(str(self.error))
        return super().__call__(value)
