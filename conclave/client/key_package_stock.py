"""Keeps key packages at the server, so that others can invite the user."""

from conclave.client.api import Client
from conclave.client.codec import Codec

REGULAR = 5
"""So many regular key packages are uploaded at a start, beside one of last resort. The server keeps the 10 newest."""


class KeyPackageStock:
    """Uploads key packages: some at the start, and one in place of each that was used.

    The protocol does not tell how many are left. Each invite and each welcome says that one was taken; what was taken
    without leading to an invite is made up for at the next start. With none left the one of last resort is handed out.
    """

    def __init__(self, client: Client, codec: Codec) -> None:
        self._client = client
        self._codec = codec
        self._has_begun = False
        self._taken = 0

    def record_taken(self) -> None:
        """One was used. It is replaced with the next ``refill``."""
        self._taken += 1

    async def refill(self) -> None:
        """Upload what is missing. Raises ClientError: then call it again."""
        begins = not self._has_begun or self._codec.needs_key_packages
        if not begins and not self._taken:
            return
        if begins:
            self._codec.record_listed_key((await self._client.me()).signing_key_fingerprint)
        taken = self._taken
        made = self._codec.key_packages(REGULAR if begins else min(taken, 2 * REGULAR), last_resort=begins)
        if made.replaces_all:
            await self._client.reset_account()  # others would invite by keys that are not here any more
        await self._client.upload_key_packages(made.regular, made.last_resort, made.fingerprint)
        self._has_begun = True
        self._taken -= taken

    def reset(self) -> None:
        """The keys are others now: what is at the server is replaced with the next ``refill``."""
        self._has_begun = False
