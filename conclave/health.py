"""Whether the server can keep its promises, and when cleanup last ran."""

from typing import Any


class Health:
    """The faults that last, none means ok; and the report of the last cleanup run."""

    def __init__(self) -> None:
        """Begin without faults."""
        self._faults: dict[str, str] = {}
        self.last_run: dict[str, Any] | None = None

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

    @property
    def status(self) -> str:
        """Ok or degraded."""
        return "degraded" if self._faults else "ok"
