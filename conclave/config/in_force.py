"""The settings in force in a running server. A reload replaces them as a whole."""

from dataclasses import dataclass

from conclave.config.settings import Config


@dataclass
class InForce:
    """Holds the settings that a request which begins now goes by. Only the event loop's thread replaces them."""

    config: Config
