"""The chat's options, and what is created from them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from conclave.client.api import Client
from conclave.client.chat.accounts import AccountFolder, Accounts, default_home
from conclave.client.chat.notifications import NotificationMode
from conclave.client.codec import Codec, PlaintextCodec
from conclave.client.encryption.codec import MlsCodec
from conclave.client.history.store import History
from conclave.clock import Clock

LOCAL_URL = "http://localhost:8080"
"""The default address of a server on this machine."""


def create_mls_codec(folder: Path, user_id: UUID) -> Codec:
    """Return the MLS codec, with its keys in a file of ``folder``. Raises KeyStoreError."""
    return MlsCodec(folder / "keys", user_id)


@dataclass(frozen=True)
class ChatOptions:
    """How to reach the server, and what to store locally.

    ``url`` and ``username``: the initial values of the login form. ``ca``: a file of trusted authorities, in place of
    the system's. ``home``: the folder of accounts. ``keeps_history``: store messages in a file rather than in memory.
    ``keep_fetched``: seconds to keep messages of delete-after-fetch groups; None: no limit. ``notifications``: how to
    notify the user. ``make_codec``: creates the codec from its folder and the user's id; None: no encryption.
    """

    url: str = ""
    username: str = ""
    ca: Path | None = None
    auth_header: str = "Authorization"
    home: Path = field(default_factory=default_home)
    keeps_history: bool = True
    keep_fetched: int | None = None
    is_plain: bool = False
    notifications: NotificationMode = NotificationMode.DESKTOP
    make_codec: Callable[[Path, UUID], Codec] | None = create_mls_codec
    clock: Clock | None = None

    @property
    def accounts(self) -> Accounts:
        """The accounts in ``home``."""
        return Accounts(self.home)

    def client(self, url: str) -> Client:
        """Return a client for a server. Raises ValueError for an invalid address."""
        return Client(url, ca=self.ca, auth_header=self.auth_header)

    def codec(self, account: AccountFolder, user_id: UUID) -> Codec:
        """Return the codec of an account. Raises KeyStoreError."""
        return self.make_codec(account.codec_folder(), user_id) if self.make_codec else PlaintextCodec()

    def history(self, account: AccountFolder) -> History:
        """Open the local history of an account. Raises HistoryError."""
        path = account.history_path if self.keeps_history else None
        return History(path, keep_after_fetch=self.keep_fetched, clock=self.clock)
