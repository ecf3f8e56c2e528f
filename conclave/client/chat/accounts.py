"""Stores each account's session, keys and local history in a folder of its own.

Folders have mode 0700 and files 0600.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from yarl import URL

from conclave.client.history import reserve
from conclave.client.history.store import History
from conclave.client.session import LoginSession, SessionFileError

_SESSION, _HISTORY, _LOCK, _CODEC = "session", "history", "lock", "codec"


class AccountInUseError(Exception):
    """Another chat has the account open. The message is one line."""


@dataclass(frozen=True)
class AccountFolder:
    """The folder of an account."""

    folder: Path

    @property
    def session_path(self) -> Path:
        """The session file."""
        return self.folder / _SESSION

    @property
    def history_path(self) -> Path:
        """The local history."""
        return self.folder / _HISTORY

    @property
    def has_keys(self) -> bool:
        """Whether a codec has stored keys here."""
        return (self.folder / _CODEC).is_dir()

    def codec_folder(self) -> Path:
        """Create the folder for the codec's keys, and return it. Raises OSError."""
        self._create()
        folder = self.folder / _CODEC
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    def save(self, session: LoginSession) -> None:
        """Save a session for the next start. Raises OSError."""
        self._create()
        session.save(self.session_path)

    def mark_used(self) -> None:
        """Mark the account as the last used: the next start continues with it."""
        if self.session_path.exists():
            self.session_path.touch()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the account within the block: two chats with one history would each miss what the other has shown.

        Raises AccountInUseError and OSError.
        """
        self._create()
        descriptor = os.open(self.folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _require_same_file(descriptor, self.folder / _LOCK)
            except (BlockingIOError, FileNotFoundError):
                raise AccountInUseError(
                    f"another conclave chat has {self.folder} open; an account can be open in one chat at a time"
                ) from None
            yield
        finally:
            os.close(descriptor)

    def delete_session(self) -> None:
        """Delete the session."""
        self.session_path.unlink(missing_ok=True)

    def erase(self) -> None:
        """Erase the session, the history (which must be closed) and the codec's keys.

        The folder is removed unless it contains other files.

        Raises HistoryError, AccountInUseError, OSError, and sqlite3.Error.
        """
        with self.locked():
            self.delete_session()
            if self.history_path.exists():
                with History(self.history_path) as history:
                    history.forget_all()
            _overwrite_and_remove(self.folder / _CODEC)
            for name in (_HISTORY, f"{_HISTORY}-journal", f"{_HISTORY}{reserve.SUFFIX}", _LOCK):
                (self.folder / name).unlink(missing_ok=True)
        with suppress(OSError):  # not empty
            self.folder.rmdir()

    def _create(self) -> None:
        """Create the folder and its parent. A mode applies only to the last folder that ``mkdir`` creates."""
        for folder in (self.folder.parent, self.folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def _overwrite_and_remove(folder: Path) -> None:
    """Overwrite and remove a folder that may contain keys. Symbolic links are removed, their targets are not."""
    if not folder.is_dir() or folder.is_symlink():
        folder.unlink(missing_ok=True)
        return
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink() and path.stat().st_nlink == 1:
            with path.open("r+b") as file:
                file.write(bytes(path.stat().st_size))
                file.flush()
                os.fsync(file.fileno())
    shutil.rmtree(folder)


def _require_same_file(descriptor: int, path: Path) -> None:
    """Raise FileNotFoundError if the locked file is no longer at ``path``: another process is erasing the account."""
    if not os.path.samestat(os.fstat(descriptor), path.stat()):
        raise FileNotFoundError(path)


class Accounts:
    """The accounts that have been used on this machine."""

    def __init__(self, home: Path) -> None:
        """``home``: the folder with a folder for each account."""
        self.home = home

    def for_session(self, session: LoginSession) -> AccountFolder:
        """Return the account folder of a session."""
        url = URL(session.url)
        where = quote(f"{session.username}@{url.host}-{url.port}{url.path.rstrip('/')}", safe="@")
        return AccountFolder(self.home / f"{where}-{session.user_id.hex[:8]}")

    def last_session(self, *, url: str = "", username: str = "") -> LoginSession | None:
        """Return the last used session, optionally of this server and this user only. Raises SessionFileError.

        ``url``: normalised by ``server_url``, as sessions store it.
        """
        try:
            found = sorted(self.home.glob(f"*/{_SESSION}"), key=lambda each: each.stat().st_mtime, reverse=True)
        except OSError as error:
            raise SessionFileError(f"{self.home}: cannot be read: {error.strerror}") from error
        for path in found:
            session = LoginSession.load(path)
            if session and (not url or session.url == url) and (not username or session.username == username):
                return session
        return None


def default_home() -> Path:
    """Return the default folder of accounts, by the XDG rules for a user's state."""
    state = os.environ.get("XDG_STATE_HOME", "")
    return (Path(state) if state.startswith("/") else Path.home() / ".local" / "state") / "conclave"
