"""The settings in force in a running server. A reload replaces them as a whole."""

from dataclasses import dataclass

from conclave.config.settings import Config


@dataclass
class InForce:
    """Holds the settings that a request which begins now goes by. Only the event loop's thread replaces them."""

    config: Config
    certificate_ends: int | None = None
    """The Unix second after which the certificate that handshakes get is not valid; None if there is none. Its file may
    have another one by now.
    """
