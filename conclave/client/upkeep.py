"""Keeps key packages at the server, so that others can invite the user."""

from conclave.client.api import Client
from conclave.client.codec import Codec

REGULAR = 5
"""So many regular key packages are uploaded at a start, beside one of last resort. The server keeps the 10 newest."""


class KeyPackageUpkeep:
    """Uploads key packages: some at the start, and one in place of each that was used.

    The protocol does not tell how many are left. Each invite and each welcome says that one was taken; what was taken
    without leading to an invite is made up for at the next start. With none left the one of last resort is handed out.
    """

    def __init__(self, client: Client, codec: Codec) -> None:
        self._client = client
        self._codec = codec
        self._has_begun = False
        self._taken = 0

    def taken(self) -> None:
        """One was used. It is replaced with the next ``refill``."""
        self._taken += 1

    async def refill(self) -> None:
        """Upload what is missing. Raises ClientError: then call it again."""
        if self._has_begun and not self._taken:
            return
        count = self._taken if self._has_begun else REGULAR
        last_resort = None if self._has_begun else self._codec.key_package()
        taken = self._taken
        packages = [self._codec.key_package() for _ in range(min(count, 2 * REGULAR))]
        await self._client.upload_key_packages(packages, last_resort)
        self._has_begun = True
        self._taken -= taken
