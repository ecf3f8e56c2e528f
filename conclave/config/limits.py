"""``[limits]``: rate limits and quotas of clients."""

from dataclasses import dataclass

from marshmallow import validate

from conclave.config.addresses import Network, parse_network
from conclave.config.fields import Duration, Memory, Networks, Section, Size
from conclave.strict_fields import StrictInteger

MAX_FAILURES = 10_000
"""The greatest limit of failures or registrations. Each of them takes memory until ``login_window`` is over."""


@dataclass(frozen=True)
class LimitsConfig:
    """``[limits]``: rate limits and quotas of clients, and the memory of responses. Quotas: 0 means no limit."""

    trusted_proxies: tuple[str, ...] = ()
    """The proxies whose X-Forwarded-For is used."""
    login_failures: int = 50
    login_failures_per_address: int = 200
    registrations_per_address: int = 1000
    registration_failures_per_address: int = 50
    login_window: int = 300
    """The seconds for which a wrong password, a wrong registration token or a new account counts."""
    response_memory: str = "256m"
    """The memory of all responses that wait for their clients."""
    user_sends_per_minute: int = 0
    group_sends_per_minute: int = 0
    user_stored_bytes: int = 0
    group_stored_bytes: int = 0
    group_stored_messages: int = 0
    user_groups: int = 0

    def __post_init__(self) -> None:
        """Convert a list from TOML or JSON to a tuple."""
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

MAX_SENDS = 1_000_000
QUOTA = validate.Range(0, 2**53 - 1, error="must be 0 (no limit), or how many")
SENDS = validate.Range(0, MAX_SENDS, error=f"must be 0 (no limit), or at most {MAX_SENDS}")


class LimitsSchema(Section):
    """The schema of ``[limits]``."""

    trusted_proxies = Networks()
    login_failures = StrictInteger(validate=FAILURES)
    login_failures_per_address = StrictInteger(validate=FAILURES)
    registrations_per_address = StrictInteger(validate=FAILURES)
    registration_failures_per_address = StrictInteger(validate=FAILURES)
    login_window = Duration()
    response_memory = Memory(least=64)
    user_sends_per_minute = StrictInteger(validate=SENDS)
    group_sends_per_minute = StrictInteger(validate=SENDS)
    user_stored_bytes = Size()
    group_stored_bytes = Size()
    group_stored_messages = StrictInteger(validate=QUOTA)
    user_groups = StrictInteger(validate=QUOTA)
