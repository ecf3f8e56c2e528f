"""What a start of the chat was told, and what it makes of it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from conclave.client.api import Client
from conclave.client.chat.accounts import Account, Accounts, default_home
from conclave.client.chat.calling import Calls
from conclave.client.codec import Codec, PlaintextCodec
from conclave.client.encryption.codec import MlsCodec
from conclave.client.history.store import History
from conclave.clock import Clock

LOCAL_URL = "http://localhost:8080"
"""Where a server that was just started on this machine answers."""


def encrypting(folder: Path, user_id: UUID) -> Codec:
    """Return what encrypts by MLS, with its keys in a file of ``folder``. Raises KeyStoreError."""
    return MlsCodec(folder / "keys", user_id)


@dataclass(frozen=True)
class ChatOptions:
    """How to reach the server, and what to keep here.

    ``url`` and ``username``: what the form for logging in begins with. ``ca``: a file of authorities to trust in place
    of the system's. ``home``: where accounts are kept. ``keeps_history``: in a file; otherwise in memory only.
    ``keep_fetched``: for how many seconds messages of groups with delete-after-fetch stay here; None: they stay.
    ``calls``: how the user is called. ``make_codec``: makes what encrypts, from a folder of its own and the user's id;
    None: the server can read it all.
    """

    url: str = ""
    username: str = ""
    ca: Path | None = None
    auth_header: str = "Authorization"
    home: Path = field(default_factory=default_home)
    keeps_history: bool = True
    keep_fetched: int | None = None
    is_plain: bool = False
    calls: Calls = Calls.DESKTOP
    make_codec: Callable[[Path, UUID], Codec] | None = encrypting
    clock: Clock | None = None

    @property
    def accounts(self) -> Accounts:
        """The accounts that were used here."""
        return Accounts(self.home)

    def client(self, url: str) -> Client:
        """Return a client of a server. Raises ValueError for an address that is none."""
        return Client(url, ca=self.ca, auth_header=self.auth_header)

    def codec(self, account: Account, user_id: UUID) -> Codec:
        """Return what makes payloads of texts for an account. Raises KeyStoreError."""
        return self.make_codec(account.codec_folder(), user_id) if self.make_codec else PlaintextCodec()

    def history(self, account: Account) -> History:
        """Open the local history of an account. Raises HistoryError."""
        path = account.history_path if self.keeps_history else None
        return History(path, keep_after_fetch=self.keep_fetched, clock=self.clock)
