"""Where the chat keeps what it knows of each account: a folder with the session and the local history.

Nobody else may read them: folders have mode 0700, files 0600.
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
    """Another chat uses the account; the text says so, in a line."""


@dataclass(frozen=True)
class Account:
    """The folder of an account."""

    folder: Path

    @property
    def session_path(self) -> Path:
        """Where the session is."""
        return self.folder / _SESSION

    @property
    def history_path(self) -> Path:
        """Where the local history is."""
        return self.folder / _HISTORY

    @property
    def has_keys(self) -> bool:
        """Whether a codec has kept something for it here."""
        return (self.folder / _CODEC).is_dir()

    def codec_folder(self) -> Path:
        """Make the folder in which a codec keeps its keys, and return it. Raises OSError."""
        self._make()
        folder = self.folder / _CODEC
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    def save(self, session: LoginSession) -> None:
        """Keep a session for the next start. Raises OSError."""
        self._make()
        session.save(self.session_path)

    def used(self) -> None:
        """Note that it is used now: the next start goes on with it."""
        if self.session_path.exists():
            self.session_path.touch()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Use the account alone: two chats with one history would each miss what the other has shown.

        Raises AccountInUseError and OSError.
        """
        self._make()
        descriptor = os.open(self.folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _compare(descriptor, self.folder / _LOCK)
            except (BlockingIOError, FileNotFoundError):
                raise AccountInUseError(
                    f"another conclave chat has {self.folder} open: use that one; an account has one chat at a time"
                ) from None
            yield
        finally:
            os.close(descriptor)

    def end_session(self) -> None:
        """Forget the session."""
        self.session_path.unlink(missing_ok=True)

    def forget(self) -> None:
        """Forget the session, the history, which is not open, and what the codec has kept.

        The folder goes too, unless something else is in it.

        Raises HistoryError, AccountInUseError, OSError, and sqlite3.Error.
        """
        with self.in_use():
            self.end_session()
            if self.history_path.exists():
                with History(self.history_path) as history:
                    history.forget_all()
            _overwrite_and_remove(self.folder / _CODEC)
            for name in (_HISTORY, f"{_HISTORY}-journal", f"{_HISTORY}{reserve.SUFFIX}", _LOCK):
                (self.folder / name).unlink(missing_ok=True)
        with suppress(OSError):  # it is not empty
            self.folder.rmdir()

    def _make(self) -> None:
        """Make the folder, and the one that it is in. A mode holds only for the last one that ``mkdir`` makes."""
        for folder in (self.folder.parent, self.folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def _overwrite_and_remove(folder: Path) -> None:
    """Remove a folder with its files, which may have keys in them. Links are removed, what they name stays."""
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


def _compare(descriptor: int, path: Path) -> None:
    """Raise FileNotFoundError if the locked file is no longer at ``path``: another process forgets the account."""
    if not os.path.samestat(os.fstat(descriptor), path.stat()):
        raise FileNotFoundError(path)


class Accounts:
    """The accounts that were used here."""

    def __init__(self, home: Path) -> None:
        """``home``: the folder that has a folder for each of them."""
        self.home = home

    def of(self, session: LoginSession) -> Account:
        """Return the account of a session."""
        url = URL(session.url)
        where = quote(f"{session.username}@{url.host}-{url.port}{url.path.rstrip('/')}", safe="@")
        return Account(self.home / f"{where}-{session.user_id.hex[:8]}")

    def last(self, *, url: str = "", username: str = "") -> LoginSession | None:
        """Return the session that was used last, of those with this server and this name. Raises SessionFileError.

        ``url``: as ``server_url`` writes it, and a session has it.
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
    """Return where accounts are kept unless something else is asked for: by the XDG rules, state of a user."""
    state = os.environ.get("XDG_STATE_HOME", "")
    return (Path(state) if state.startswith("/") else Path.home() / ".local" / "state") / "conclave"
