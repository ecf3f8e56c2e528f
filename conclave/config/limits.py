"""``[limits]``: what clients may do."""

from dataclasses import dataclass

from marshmallow import validate

from conclave.addresses import Network, parse_network
from conclave.config.section import Section
from conclave.fields import Duration, Networks, StrictInteger, Text

MAX_FAILURES = 10_000
"""At most 10,000 wrong passwords, registration tokens or new accounts are counted: each is a moment in memory."""


@dataclass(frozen=True)
class LimitsConfig:
    """``[limits]``: how much clients may do, and how much memory responses may take.

    ``trusted_proxies``: those whose word counts on where a request comes from. ``login_window``: the seconds in which
    wrong passwords, wrong registration tokens and new accounts are counted. ``response_memory``: what all responses
    under way may take.
    """

    trusted_proxies: tuple[str, ...] = ()
    login_failures: int = 50
    login_failures_per_address: int = 200
    registrations_per_address: int = 1000
    registration_failures_per_address: int = 50
    login_window: int = 300
    response_memory: str = "256m"

    def __post_init__(self) -> None:
        """Take a list too, since TOML and JSON have no tuples."""
        object.__setattr__(self, "trusted_proxies", tuple(self.trusted_proxies))

    @property
    def response_bytes(self) -> int:
        """The bytes of ``response_memory``."""
        return int(self.response_memory[:-1]) * {"m": 1024**2, "g": 1024**3}[self.response_memory[-1]]

    @property
    def trusted(self) -> list[Network]:
        """The networks of ``trusted_proxies``."""
        return [parse_network(text) for text in self.trusted_proxies]


FAILURES = validate.Range(1, MAX_FAILURES, error=f"must be between 1 and {MAX_FAILURES}")


class LimitsSchema(Section):
    """What ``[limits]`` may say."""

    trusted_proxies = Networks()
    login_failures = StrictInteger(validate=FAILURES)
    login_failures_per_address = StrictInteger(validate=FAILURES)
    registrations_per_address = StrictInteger(validate=FAILURES)
    registration_failures_per_address = StrictInteger(validate=FAILURES)
    login_window = Duration()
    response_memory = Text(
        validate=validate.Regexp(
            r"(6[4-9]|[7-9][0-9]|[1-9][0-9]{2,5})m\Z|[1-9][0-9]{0,2}g\Z",
            error='must be a size of at least "64m", as in "1g"',
        )
    )
