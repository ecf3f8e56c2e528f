"""What is said in passing: on rows of its own above the field, for a while, and no longer than it matters. Pure."""

from dataclasses import dataclass, replace

MOST_SAID = 3
"""The last 3 sayings can be read at once."""

SAID_SECONDS, BAD_SECONDS = 8.0, 30.0
"""How long each stays while somebody looks: what is bad stays longer."""


@dataclass(frozen=True)
class Saying:
    """Something that was said. ``left``: for how many seconds it stays."""

    text: str
    is_bad: bool
    left: float


class Sayings:
    """What was said lately."""

    def __init__(self) -> None:
        """Nothing was said yet."""
        self.all: list[Saying] = []

    def say(self, text: str, *, is_bad: bool = False) -> None:
        """Say something; what was said before with the same words is not said twice."""
        others = [each for each in self.all if each.text != text]
        self.all = [*others, Saying(text, is_bad, BAD_SECONDS if is_bad else SAID_SECONDS)][-MOST_SAID:]

    def has(self, text: str) -> bool:
        """Tell whether something was said that can still be read."""
        return any(each.text == text for each in self.all)

    def pass_on(self) -> bool:
        """The user goes on to something else: what was said before that is over, but for what is bad."""
        return self._keep([each for each in self.all if each.is_bad])

    def tick(self, seconds: float) -> bool:
        """So many seconds have passed in which it could be read. Tell whether something is over."""
        self.all = [replace(each, left=each.left - seconds) for each in self.all]
        return self._keep([each for each in self.all if each.left > 0])

    def _keep(self, kept: list[Saying]) -> bool:
        is_less = len(kept) < len(self.all)
        self.all = kept
        return is_less
