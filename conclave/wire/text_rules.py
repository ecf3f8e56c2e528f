"""Which texts of users count as names and other words in passing: none that a reader of them would be deceived by."""

import re
from typing import Any

from marshmallow import ValidationError, validate

_INVISIBLE = (
    r"\x00-\x1f\x7f-\x9f"  # controls (Cc)
    r"\u2028\u2029"  # ends of lines and paragraphs (Zl, Zp)
    r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # these turn the direction of writing
    r"\u2060-\u2064\u206a-\u206f"  # invisible operators, and what is deprecated beside them
    r"\u00ad\u200b\ufeff\ufff9-\ufffb"  # others that are not seen: soft hyphen, spaces without width, annotations
)
"""The refused characters of the first plane, as a range of a regular expression, in Python as in JSON Schema.

Of the category Cf it leaves what is seen, such as the Arabic number sign, and what scripts need: U+200C, U+200D and
U+180E.
"""

_INVISIBLE_BEYOND = re.compile(
    "[\ud800-\udfff\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0001\U000e0020-\U000e007f]"
)
"""The other refused characters: surrogates (Cs), controls of shorthand and of musical notation, and tags.

JSON Schema does not name them: whether one character there is one depends on who reads it.
"""

_FLAG = re.compile("\U0001f3f4[\U000e0030-\U000e0039\U000e0061-\U000e007a]{3,6}\U000e007f")
"""The flag of a part of a country, such as Scotland: the only use of tags. Elsewhere they hide a text in a text."""


class TextRule(validate.Regexp):
    """Checks that a text has no character that is not seen, or that changes how others are seen."""

    def __init__(self, most: int | None, error: str) -> None:
        """``most``: how many characters it may have; None: any number."""
        super().__init__(rf"[^{_INVISIBLE}]{{0,{'' if most is None else most}}}\Z", error=error)

    def __call__(self, value: Any) -> Any:
        """Return the text. Raises ValidationError."""
        if _INVISIBLE_BEYOND.search(_FLAG.sub("", value)):
            raise ValidationError(str(self.error))
        return super().__call__(value)
