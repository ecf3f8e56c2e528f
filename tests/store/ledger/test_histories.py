"""Random histories with a backup in them: what is restored shows nobody what was hidden, and loses nothing else."""

import contextlib
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, note, settings, strategies as st

from conclave.clock import FakeClock
from conclave.config.vault import VaultConfig
from conclave.errors import ApiError
from conclave.store.resources.groups import GroupRow
from conclave.store.resources.members import Membership
from tests.store.ledger.world import DAY, HOUR, World
from tests.support import sample

EXPIRIES = (-1, 0, HOUR, DAY, 5 * DAY)
PASSING = (1, 60, HOUR, HOUR + 1, DAY)

ALONE = (
    *("pass_time", "pass_time", "change_settings", "change_max_age"),
    *("clean_up", "clean_up", "tell", "beat", "create_group"),
)
OF_GROUPS = ("fetch_all", "change_policy", "change_policy", "purge", "delete_group", "join")
OF_MEMBERS = (
    *("send", "send", "send", "send_timed", "send_timed", "fetch", "fetch", "read", "read", "take_back"),
    *("leave", "ban", "delete_account", "promote", "demote", "disable", "invite", "invite"),
)
STEPS = (*ALONE, *OF_GROUPS, *OF_MEMBERS)


class History(World):
    """What happens, told by numbers: which of those there are it happens to, and how."""

    used = 10

    def do(self, step: str, one: int, other: int) -> None:
        """Do a step, if it can be done and is not refused."""
        with contextlib.suppress(ApiError):
            if step in ALONE:
                getattr(self, f"{step}_")(one, other)
            elif step in OF_GROUPS and (groups := self.groups()):
                getattr(self, f"{step}_")(groups[one % len(groups)], other)
            elif there := self.memberships():
                getattr(self, f"{step}_")(there[one % len(there)], other)

    def pass_time_(self, one: int, _: int) -> None:
        self.clock.advance(PASSING[one % len(PASSING)])

    def change_settings_(self, one: int, _: int) -> None:
        self.change_settings((-1, -1, 0, 2 * DAY)[one % 4])

    def change_max_age_(self, one: int, _: int) -> None:
        self.change_max_age((HOUR, DAY, 30 * DAY)[one % 3])

    def clean_up_(self, one: int, _: int) -> None:
        self.clean_up(can_tell=one % 3 > 0)

    def tell_(self, _: int, __: int) -> None:
        self.tell()

    def beat_(self, _: int, __: int) -> None:
        self.beat()

    def create_group_(self, one: int, other: int) -> None:
        self.used += 1
        if user_ids := self.user_ids()[one % 3 :]:
            self.create_group(f"group{self.used}", *user_ids[: 1 + other % len(user_ids)])

    def change_policy_(self, group: GroupRow, other: int) -> None:
        self.change_policy(group, EXPIRIES[other % len(EXPIRIES)])

    def purge_(self, group: GroupRow, other: int) -> None:
        self.purge(group, self.clock.now() - (0, 60, HOUR)[other % 3])

    def delete_group_(self, group: GroupRow, other: int) -> None:
        if other % 3 == 0:
            self.delete_group(group)

    def join_(self, group: GroupRow, other: int) -> None:
        inside = {each.user_id for each in self.memberships() if each.group == group}
        outside = [
            each for each in self.user_ids() if each not in inside and (group.group_key, each) not in self.banned()
        ]
        if outside:
            self.join(group, outside[other % len(outside)])

    def fetch_all_(self, group: GroupRow, _: int) -> None:
        for each in self.memberships():
            if each.group == group:
                self.fetch(each)

    def delete_account_(self, member: Membership, other: int) -> None:
        if other % 3 == 0:
            self.used += 1
            self.delete_account(member.user_id)
            self.register(f"user{self.used}")

    def send_(self, member: Membership, other: int) -> None:
        self.send(member, is_commit=other % 5 == 0)

    def send_timed_(self, member: Membership, other: int) -> None:
        self.send(member, seconds=(1, 60, HOUR)[other % 3])

    def fetch_(self, member: Membership, _: int) -> None:
        self.fetch(member)

    def read_(self, member: Membership, other: int) -> None:
        self.read(member, max(1, member.group.last_seq - other % 3))

    def take_back_(self, member: Membership, other: int) -> None:
        self.take_back(member, max(1, member.group.last_seq - other % 4))

    def leave_(self, member: Membership, _: int) -> None:
        self.leave(member)

    def ban_(self, member: Membership, other: int) -> None:
        if others := [each for each in self.user_ids() if each != member.user_id]:
            self.ban(member, others[other % len(others)])

    def promote_(self, member: Membership, _: int) -> None:
        self.promote(member)

    def demote_(self, member: Membership, _: int) -> None:
        self.demote(member)

    def disable_(self, member: Membership, other: int) -> None:
        if other % 4 == 0:
            self.disable(member.user_id)

    def invite_(self, member: Membership, other: int) -> None:
        if others := [each for each in self.user_ids() if each != member.user_id]:
            self.invite(member, others[other % len(others)])

    def user_ids(self) -> list[bytes]:
        with self.reading() as connection:
            return [row[0] for row in connection.execute("SELECT user_id FROM users ORDER BY username")]


some_steps = st.lists(
    st.tuples(st.sampled_from(STEPS), st.integers(0, 11), st.integers(0, 11)), min_size=5, max_size=25
)


@pytest.mark.system
@given(before=some_steps, after=some_steps, meanwhile=st.integers(0, 2 * DAY), drained=st.booleans())
@settings(
    max_examples=sample.amount(300, 20),
    suppress_health_check=[HealthCheck.too_slow],
)
def test_a_restored_backup_shows_nothing_that_was_hidden_and_loses_nothing_else(
    before: list[tuple[str, int, int]], after: list[tuple[str, int, int]], meanwhile: int, *, drained: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        play(Path(folder), before, after, meanwhile, drained=drained)


def play(
    folder: Path,
    before: list[tuple[str, int, int]],
    after: list[tuple[str, int, int]],
    meanwhile: int,
    *,
    drained: bool,
) -> None:
    lost = History(folder / "lost", FakeClock(), folder / "vault")
    lost.begin()
    alice, bob, carol = (lost.register(f"user{number}") for number in range(3))
    lost.create_group("group0", alice, bob, carol)
    lost.create_group("group1", bob, alice)
    lost.register("user3")
    for step in before:
        lost.do(*step)
    if drained:
        lost.beat()
    lost.backup(folder / "copy.db")
    copied = lost.restored(folder / "copy.db", folder / "copied")
    copied_messages, copied_members = copied.stored(), {each.member_id for each in copied.memberships()}
    copied_invites = copied.invited()
    for step in after:
        lost.do(*step)
    lost.beat()
    lost.clock.advance(meanwhile)

    shutil.copytree(lost.config.vault_path, folder / "lost-vault")
    restored = lost.restored(folder / "copy.db", folder / "restored")
    restored.replay()
    restored.begin()

    lost_shown, shown = lost.shown(), restored.shown()
    note(f"shown at the loss {sorted(lost_shown)}, restored {sorted(shown)}")
    assert shown <= lost_shown, "nobody is shown what was hidden at the loss"
    lost_members = {each.member_id: each for each in lost.memberships()}
    stayed = {(each.user_id, each.group.group_key) for key, each in lost_members.items() if key in copied_members}
    expected = {each for each in lost_shown if (each[1], each[2]) in copied_messages and (each[0], each[1]) in stayed}
    assert restored.invited() == lost.invited() & copied_invites, "of the copy's invites those that held at the loss"
    assert expected <= shown, "whoever was a member all the time is shown what the copy had and was not hidden"

    restored.clean_up()
    erased = copied_messages - lost.stored()
    assert not erased & restored.stored(), "the first run erases what was erased"
    lost.config = replace(lost.config, vault=VaultConfig(str(folder / "lost-vault")))
    lost.clean_up()
    newcomers = {each.group.group_key for key, each in lost_members.items() if key not in copied_members}
    kept = {each for each in lost.stored() & copied_messages if each[0] not in newcomers}
    assert kept <= restored.stored(), "and nothing else"
    numbers = {each.group_key: each.last_seq for each in lost.groups()}
    for group in restored.groups():
        assert group.last_seq > numbers.get(group.group_key, 0)
