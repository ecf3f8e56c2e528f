"""Whether the server can keep its promises."""


class Health:
    """The faults that last; none means ok."""

    def __init__(self) -> None:
        """Begin without faults."""
        self._faults: dict[str, str] = {}

    def fault(self, part: str, text: str) -> None:
        """Note that ``part`` does not work, in place of what was noted of it before."""
        self._faults[part] = text

    def mend(self, part: str) -> None:
        """Note that ``part`` works."""
        self._faults.pop(part, None)

    @property
    def faults(self) -> dict[str, str]:
        """What does not work, by part."""
        return dict(self._faults)
