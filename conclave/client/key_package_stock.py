"""Keeps key packages on the server, so that others can invite the user."""

from conclave.client.api import Client
from conclave.client.codec import Codec

REGULAR = 5
"""Regular key packages uploaded at a start, in addition to a last-resort one. The server keeps the 10 newest."""


class KeyPackageStock:
    """Uploads key packages: some at the start, and one for each that was used.

    The protocol does not report how many are left. Each invite and each welcome shows that one was used. Others
    are replaced at the next start. When none are left, the server hands out the last-resort key package.
    """

    def __init__(self, client: Client, codec: Codec) -> None:
        self._client = client
        self._codec = codec
        self._has_begun = False
        self._used_count = 0

    def record_taken(self) -> None:
        """Record that a key package was used. The next ``refill`` replaces it."""
        self._used_count += 1

    async def refill(self) -> None:
        """Upload missing key packages. Raises ClientError: then call it again."""
        is_full_upload = not self._has_begun or self._codec.needs_key_packages
        if not is_full_upload and not self._used_count:
            return
        if is_full_upload:
            self._codec.record_listed_key((await self._client.me()).signing_key_fingerprint)
        used_count = self._used_count
        packages = self._codec.key_packages(
            REGULAR if is_full_upload else min(used_count, 2 * REGULAR), last_resort=is_full_upload
        )
        if packages.replaces_all:
            await self._client.reset_account()  # invites with the former keys could not be decrypted
        await self._client.upload_key_packages(packages.regular, packages.last_resort, packages.fingerprint)
        self._has_begun = True
        self._used_count -= used_count

    def reset(self) -> None:
        """Let the next ``refill`` replace all key packages, since the keys have changed."""
        self._has_begun = False
