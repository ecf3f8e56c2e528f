"""Where accounts are kept: who can read it, who can use it, what is left of one that is forgotten."""

import json
import os
import subprocess
import sys
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from conclave.client import History, HistoryError, LoginSession, PlaintextCodec, SessionFileError
from conclave.client.chat.accounts import AccountFolder, AccountInUseError, Accounts, default_home
from conclave.client.chat.login import server_url
from conclave.client.chat.options import ChatOptions
from conclave.client.history.pages import IncomingMessage
from conclave.clock import FakeClock
from tests.support.forensics import Search

URL = "https://chat.example.org"


def session(name: str = "alice", url: str = URL, number: int = 7) -> LoginSession:
    return LoginSession(url, UUID(int=number << 96), name, "5c" * 32)


@pytest.fixture
def accounts(tmp_path: Path) -> Accounts:
    return Accounts(tmp_path / "state" / "conclave")


@pytest.fixture
def account(accounts: Accounts) -> AccountFolder:
    return accounts.for_session(session())


class KeepingCodec(PlaintextCodec):
    """It keeps keys in its folder."""

    def __init__(self, folder: Path) -> None:
        (folder / "deep").mkdir()
        (folder / "deep" / "keys").write_bytes(b"a secret key" * 1_000)


def modes(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_mode & 0o777 for path in [folder, *folder.rglob("*")]}


@pytest.mark.parametrize("mask", [0o022, 0o000])
def test_nobody_else_can_read_anything(accounts: Accounts, account: AccountFolder, mask: int) -> None:
    former = os.umask(mask)
    try:
        account.save(session())
        with account.locked(), History(account.history_path) as history:
            history.claim("somebody")
    finally:
        os.umask(former)
    found = modes(accounts.home)
    folder = account.folder.name
    assert found.pop(".") == 0o700
    assert found.pop(folder) == 0o700
    assert set(found) >= {f"{folder}/session", f"{folder}/history", f"{folder}/lock"}
    assert set(found.values()) == {0o600}


@pytest.mark.parametrize(
    ("url", "folder"),
    [
        (URL, "alice@chat.example.org-443-00000007"),
        ("http://localhost:8080", "alice@localhost-8080-00000007"),
        ("https://x/a/b", "alice@x-443%2Fa%2Fb-00000007"),
        ("https://[::1]:1", "alice@%3A%3A1-1-00000007"),
    ],
)
def test_the_folder_says_whose_it_is_and_is_directly_in_the_home(accounts: Accounts, url: str, folder: str) -> None:
    assert accounts.for_session(session(url=url)).folder == accounts.home / folder


def test_each_account_has_a_folder_of_its_own(accounts: Accounts) -> None:
    those = [session(), session("bob"), session(url="https://other"), session(url=f"{URL}/b"), session(number=8)]
    assert len({accounts.for_session(each).folder for each in those}) == len(those)


class TestInUse:
    def test_an_account_is_used_by_one_chat(self, accounts: Accounts, account: AccountFolder) -> None:
        with account.locked():
            with pytest.raises(AccountInUseError, match=r"another conclave chat has .* open; an account"):
                account.locked().__enter__()
            with accounts.for_session(session("bob")).locked():
                pass
        with account.locked():
            pass

    def test_also_by_one_process(self, account: AccountFolder) -> None:
        program = (
            "import sys; from pathlib import Path; from conclave.client.chat.accounts import *\n"
            "try:\n    with AccountFolder(Path(sys.argv[1])).locked(): print('mine')\n"
            "except AccountInUseError: print('in use')"
        )
        command = [sys.executable, "-P", "-c", program, str(account.folder)]
        with account.locked():
            assert subprocess.run(command, capture_output=True, text=True).stdout == "in use\n"
        assert subprocess.run(command, capture_output=True, text=True).stdout == "mine\n"

    def test_a_process_that_died_holds_nothing(self, account: AccountFolder) -> None:
        program = (
            "import os, sys; from pathlib import Path; from conclave.client.chat.accounts import *\n"
            "with AccountFolder(Path(sys.argv[1])).locked(): os.kill(os.getpid(), 9)"
        )
        assert subprocess.run([sys.executable, "-P", "-c", program, account.folder]).returncode == -9
        with account.locked():
            pass

    def test_a_link_in_place_of_the_lock_is_not_followed(self, account: AccountFolder, tmp_path: Path) -> None:
        account.folder.mkdir(parents=True)
        (account.folder / "lock").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(OSError, match="symbolic links"):
            account.locked().__enter__()
        assert not (tmp_path / "elsewhere").exists()

    def test_one_that_is_being_forgotten_is_not_begun(
        self, account: AccountFolder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its lock is open already when the file is removed: whoever comes next would have another one."""
        opened = os.open

        def open_and_lose(path: Path, *others: int) -> int:
            descriptor = opened(path, *others)
            path.unlink()
            return descriptor

        monkeypatch.setattr(os, "open", open_and_lose)
        with pytest.raises(AccountInUseError):
            account.locked().__enter__()


class TestSessions:
    def test_one_that_is_saved_is_there_again(self, accounts: Accounts, account: AccountFolder) -> None:
        assert accounts.last_session() is None
        account.save(session())
        assert accounts.last_session() == session()
        account.delete_session()
        account.delete_session()
        assert accounts.last_session() is None

    def test_a_link_in_place_of_it_is_replaced(self, account: AccountFolder, tmp_path: Path) -> None:
        (tmp_path / "elsewhere").write_text("precious")
        account.folder.mkdir(parents=True)
        account.session_path.symlink_to(tmp_path / "elsewhere")
        account.save(session())
        assert (tmp_path / "elsewhere").read_text() == "precious"
        assert not account.session_path.is_symlink()

    def test_one_that_others_may_read_is_not_used(self, accounts: Accounts, account: AccountFolder) -> None:
        account.save(session())
        account.session_path.chmod(0o640)
        with pytest.raises(
            SessionFileError, match=r"session: other users can read this session: chmod 600 it, or remove"
        ):
            accounts.last_session()

    @pytest.mark.parametrize("wrong", [{"url": 5}, {"token": None}, {"username": ["alice"]}, {"user_id": 7}], ids=str)
    def test_one_that_is_damaged_is_told_to_be_none(
        self, accounts: Accounts, account: AccountFolder, wrong: dict[str, object]
    ) -> None:
        account.save(session())
        values = json.loads(account.session_path.read_text(encoding="utf-8"))
        account.session_path.write_text(json.dumps(values | wrong), encoding="utf-8")
        with pytest.raises(SessionFileError, match="is not a session: remove it and log in again"):
            accounts.last_session()

    def test_the_last_is_the_one_that_began_last(self, accounts: Accounts) -> None:
        those = [session(), session("bob"), session("carol", "http://localhost:8080"), session("alice", number=9)]
        for turn, each in enumerate([those[1], those[3], those[2], those[0]]):
            accounts.for_session(each).save(each)
            os.utime(accounts.for_session(each).session_path, (turn, turn))
        assert accounts.last_session() == those[0]
        assert accounts.last_session(username="bob") == those[1]
        assert accounts.last_session(url="http://localhost:8080") == those[2]
        os.utime(accounts.for_session(those[3]).session_path, (9, 9))
        assert accounts.last_session(username="alice") == those[3]
        assert accounts.last_session(url=URL, username="carol") is None
        assert accounts.last_session(username="Bob") is None, "bob and Bob are two people"

    @pytest.mark.parametrize(
        "typed", ["chat.example.org", "https://Chat.Example.ORG", "https://chat.example.org:443", f" {URL}/ "]
    )
    def test_a_server_is_found_however_its_address_is_typed(self, accounts: Accounts, typed: str) -> None:
        accounts.for_session(session()).save(session())
        assert accounts.last_session(url=server_url(typed)) == session()


class TestForgetting:
    def history(self, account: AccountFolder, search: Search) -> History:
        """Return a history with 2,000 texts in three groups, of which some were erased before."""
        clock = FakeClock()
        history = History(account.history_path, clock=clock)
        history.claim("somebody")
        for group, expiry in ((uuid4(), -1), (uuid4(), 5), (uuid4(), 0)):
            history.set_expiry(group, expiry)
            for page in range(10):
                numbers = range(page * 60, page * 60 + 60)
                arrived = [
                    IncomingMessage(number + 1, uuid4(), search.body(number, 30 + 7 * number), clock.now())
                    for number in numbers
                ]
                history.store(group, numbers[0], numbers[-1] + 1, arrived)
                clock.advance(1)
                history.enforce()
        return history

    def test_nothing_is_left_of_it_nor_in_what_it_frees(
        self, accounts: Accounts, account: AccountFolder, tmp_path: Path
    ) -> None:
        search = Search()
        account.save(session())
        self.history(account, search).close()
        other = accounts.for_session(session("bob"))
        other.save(session("bob"))
        with other.locked():
            self.history(other, search).close()
        assert len(search.numbers_in(account.folder)) == 600
        (tmp_path / "freed").mkdir()
        os.link(account.history_path, tmp_path / "freed" / "history")
        os.link(f"{account.history_path}-journal", tmp_path / "freed" / "journal")
        account.erase()
        assert not account.folder.exists()
        assert search.numbers_in(tmp_path / "freed") == set()
        assert b"somebody" not in (tmp_path / "freed" / "history").read_bytes()
        assert len(search.numbers_in(other.folder)) == 600
        assert accounts.last_session() == session("bob")

    def test_nothing_is_left_of_what_a_codec_has_kept(self, account: AccountFolder, tmp_path: Path) -> None:
        """Its keys would open what others have copied on the way."""
        account.save(session())
        options = ChatOptions(home=account.folder.parent, make_codec=lambda folder, _: KeepingCodec(folder))
        options.codec(account, UUID(int=1))
        folder = account.codec_folder()
        assert folder.stat().st_mode & 0o777 == 0o700
        with (folder / "deep" / "keys").open("rb") as freed:
            (folder / "elsewhere").symlink_to(tmp_path / "precious")
            (tmp_path / "precious").write_bytes(b"not of the codec")
            account.erase()
            assert not account.folder.exists()
            assert set(freed.read()) == {0}, "overwritten before it was removed"
        assert (tmp_path / "precious").read_bytes() == b"not of the codec"

    def test_what_somebody_else_has_put_there_stays(self, account: AccountFolder) -> None:
        account.save(session())
        (account.folder / "keys").write_text("of somebody else")
        account.erase()
        assert [each.name for each in account.folder.iterdir()] == ["keys"]
        account.save(session())
        with account.locked():
            pass

    def test_there_may_be_nothing_to_forget(self, account: AccountFolder) -> None:
        account.erase()
        account.save(session())
        account.erase()
        assert not account.folder.exists()

    def test_one_that_another_chat_uses_is_not_forgotten(self, accounts: Accounts, account: AccountFolder) -> None:
        account.save(session())
        with account.locked():
            self.history(account, Search()).close()
            with pytest.raises(AccountInUseError):
                account.erase()
        assert accounts.last_session() == session()
        assert account.history_path.exists()

    def test_a_history_that_is_none_is_not_removed_in_silence(self, account: AccountFolder) -> None:
        account.save(session())
        account.history_path.write_bytes(b"no database at all" * 100)
        with pytest.raises(HistoryError, match="is not a history"):
            account.erase()
        assert account.history_path.exists()


@pytest.mark.parametrize(
    ("state", "home"),
    [("/x/state", "/x/state/conclave"), ("", "/h/.local/state/conclave"), ("relative", "/h/.local/state/conclave")],
)
def test_accounts_are_kept_where_the_xdg_rules_say(monkeypatch: pytest.MonkeyPatch, state: str, home: str) -> None:
    monkeypatch.setenv("HOME", "/h")
    monkeypatch.setenv("XDG_STATE_HOME", state)
    assert default_home() == Path(home)
    monkeypatch.delenv("XDG_STATE_HOME")
    assert default_home() == Path("/h/.local/state/conclave")
