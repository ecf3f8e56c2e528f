"""Keeps key packages on the server, so that others can invite the user."""

from conclave.client.api import Client
from conclave.client.codec import Codec

REGULAR = 5
"""Regular key packages uploaded at a start, besides one of last resort. The server keeps the 10 newest."""


class KeyPackageStock:
    """Uploads key packages: some at the start, and one for each that was used.

    The protocol does not report how many are left. Each invite and each welcome shows that one was used; others that
    were used are replaced at the next start. When none are left, the server hands out the one of last resort.
    """

    def __init__(self, client: Client, codec: Codec) -> None:
        self._client = client
        self._codec = codec
        self._has_begun = False
        self._taken = 0

    def record_taken(self) -> None:
        """Record that one was used. The next ``refill`` replaces it."""
        self._taken += 1

    async def refill(self) -> None:
        """Upload missing key packages. Raises ClientError: then call it again."""
        begins = not self._has_begun or self._codec.needs_key_packages
        if not begins and not self._taken:
            return
        if begins:
            self._codec.record_listed_key((await self._client.me()).signing_key_fingerprint)
        taken = self._taken
        made = self._codec.key_packages(REGULAR if begins else min(taken, 2 * REGULAR), last_resort=begins)
        if made.replaces_all:
            await self._client.reset_account()  # invites with the former keys could not be decrypted
        await self._client.upload_key_packages(made.regular, made.last_resort, made.fingerprint)
        self._has_begun = True
        self._taken -= taken

    def reset(self) -> None:
        """Let the next ``refill`` replace all key packages, since the keys have changed."""
        self._has_begun = False
