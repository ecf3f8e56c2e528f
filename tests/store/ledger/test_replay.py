"""What a restored copy learns from the ledger, thing by thing; and when it is refused."""

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from conclave.actions import accounts, groups as grouping, invites as inviting
from conclave.actions.authorisation import require_group
from conclave.actions.replay import NUMBERS, IncompleteError, replay
from conclave.clock import FakeClock
from conclave.keys.inspection import Inspection
from conclave.retention import holds
from conclave.store import bodies
from conclave.store.ledger import book, changes
from conclave.store.ledger.book import LedgerError
from conclave.store.ledger.changes import drain
from conclave.store.resources import groups, invites, key_packages, members, sessions, taken_back, users, welcomes
from conclave.store.resources.state import clock_state
from conclave.store.resources.taken_back import TakenBack
from spark.environment import CleanupError
from tests.store.ledger.world import DAY, HOUR, World
from tests.support import ledgers
from tests.support.failpoints import LEDGER_POINTS, REPLAY_POINTS
from tests.support.memberships import member_of


class Backed(World):
    """A store with two groups of three users, and a backup of it."""

    def set_up(self) -> "Backed":
        self.begin()
        self.alice, self.bob, self.carol = map(self.register, ("alice", "bob", "carol"))
        self.friends = self.create_group("friends", self.alice, self.bob, self.carol)
        self.others = self.create_group("others", self.bob, self.alice)
        self.beat()
        return self

    def member(self, group_id: bytes, user_id: bytes) -> members.Membership:
        with self.reading() as connection:
            return member_of(connection, group_id, user_id)

    def group(self, group_id: bytes) -> groups.GroupRow:
        with self.reading() as connection:
            return require_group(connection, group_id)

    def back_up(self) -> None:
        self.backup(self.folder / "copy.db")

    def restore(self, *, accept_incomplete: bool = False) -> World:
        """Lose the store now, and return its copy, after the replay."""
        self.beat()
        world = self.restored(self.folder / "copy.db", self.folder / "restored")
        with world.reading() as connection:
            self.done = replay(connection, self.ledger, self.clock.now(), accept_incomplete=accept_incomplete)
        world.begin()
        return world


@pytest.fixture
def world(tmp_path: Path) -> Backed:
    return Backed(tmp_path / "store", FakeClock(), tmp_path / "vault").set_up()


def count(world: World, table: str) -> int:
    with world.reading() as connection:
        return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def test_what_everybody_had_fetched_stays_hidden_and_goes_with_the_first_run(world: Backed) -> None:
    world.change_policy(world.group(world.friends), 0)
    alice = world.member(world.friends, world.alice)
    fetched, kept = world.send(alice), world.send(world.member(world.others, world.alice))
    world.back_up()
    for user in (world.alice, world.bob, world.carol):
        world.fetch(world.member(world.friends, user))
    unfetched = world.send(alice)
    world.clock.advance(1)
    world.clean_up()
    key, other = world.group(world.friends).group_key, world.group(world.others).group_key
    assert world.stored() == {(key, unfetched), (other, kept)}
    restored = world.restore()
    assert restored.stored() == {(key, fetched), (other, kept)}, "as the copy had it"
    assert restored.shown() == {(world.alice, other, kept), (world.bob, other, kept)}
    restored.clean_up()
    assert restored.stored() == {(other, kept)}


def test_what_had_expired_under_a_shorter_policy_stays_hidden(world: Backed) -> None:
    world.change_policy(world.group(world.friends), HOUR)
    alice = world.member(world.friends, world.alice)
    world.send(alice)
    world.clock.advance(HOUR // 2)
    young = world.send(alice)
    world.back_up()
    world.clock.advance(HOUR // 2 + 1)
    world.change_policy(world.group(world.friends), -1)
    world.clock.advance(DAY)
    restored = world.restore()
    assert {number for _, _, number in restored.shown()} == {young}
    restored.clean_up()
    assert {number for _, number in restored.stored()} == {young}


def test_what_is_kept_for_longer_now_is_not_lost_by_the_policy_of_the_backup(world: Backed) -> None:
    world.change_policy(world.group(world.friends), HOUR)
    number = world.send(world.member(world.friends, world.alice))
    world.back_up()
    world.change_policy(world.group(world.friends), -1)
    world.clock.advance(DAY)
    restored = world.restore()
    restored.clean_up()
    assert {each for _, _, each in restored.shown()} == {number}


def test_settings_that_changed_are_settled_as_they_were(world: Backed) -> None:
    """Expired under a setting that was lengthened since, and again by the start after the restore."""
    world.change_settings(HOUR)
    world.beat()
    world.send(world.member(world.friends, world.alice))
    world.back_up()
    world.clock.advance(HOUR + 1)
    world.beat()
    restored = world.restored(world.folder / "copy.db", world.folder / "restored")
    restored.replay()
    restored.change_settings(-1)
    assert restored.shown() == set(), "the start settles up to when the lost store was last in use"


def test_a_purge_stays(world: Backed) -> None:
    world.send(world.member(world.friends, world.alice))
    world.back_up()
    world.clock.advance(1)
    world.purge(world.group(world.friends), world.clock.now())
    restored = world.restore()
    assert restored.shown() == set()
    restored.clean_up()
    assert restored.stored() == set()


def test_who_has_set_an_expiry_is_known_after_a_restore_unless_the_account_is_gone(world: Backed) -> None:
    def change(group_id: bytes, user_id: bytes, expiry: int) -> None:
        with world.writing() as connection:
            grouping.update(
                connection, world.context, group_id, user_id, groups.GroupChanges(message_expiry_seconds=expiry)
            )

    change(world.friends, world.alice, 60)
    world.promote(world.member(world.friends, world.bob))
    world.back_up()
    change(world.friends, world.bob, 120)
    change(world.others, world.bob, 120)
    with world.restore().reading() as connection:
        setters = [
            groups.expiry_setter(connection, world.group(each).group_key) for each in (world.friends, world.others)
        ]
        assert setters == [world.bob, world.bob]
    world.delete_account(world.bob)
    with world.restore().reading() as connection:
        assert groups.expiry_setter(connection, world.group(world.friends).group_key) == b""


def test_deleted_groups_and_accounts_are_deleted_again(world: Backed) -> None:
    world.send(world.member(world.friends, world.alice))
    gone = world.send(world.member(world.others, world.alice))
    kept = world.send(world.member(world.others, world.bob))
    world.back_up()
    world.delete_group(world.group(world.friends))
    world.delete_account(world.alice)
    world.clean_up()
    assert count(world, "tombstones") == count(world, "user_tombstones") == 0, "nothing but the ledger knows of them"
    restored = world.restore()
    other = world.group(world.others).group_key
    assert restored.shown() == {(world.bob, other, kept)}
    assert [each.group_id for each in restored.groups()] == [world.others]
    restored.clean_up()
    assert restored.stored() == {(other, kept)}
    assert gone != kept
    with restored.writing() as connection:
        assert users.add(connection, "alice", "", "", 0), "the name is free"


def test_who_left_or_was_banned_is_no_member_and_roles_are_those_of_the_end(world: Backed) -> None:
    number = world.send(world.member(world.friends, world.alice))
    world.back_up()
    world.promote(world.member(world.friends, world.bob))
    world.demote(world.member(world.friends, world.alice))
    world.ban(world.member(world.friends, world.bob), world.carol)
    world.leave(world.member(world.others, world.alice))
    dave = world.register("dave")
    world.join(world.group(world.friends), dave)
    restored = world.restore()
    roles = {(each.group.group_id, each.user_id): each.role for each in restored.memberships()}
    assert roles == {
        (world.friends, world.alice): "member",
        (world.friends, world.bob): "admin",
        (world.others, world.bob): "admin",
    }, "who came since is not there"
    key = world.group(world.friends).group_key
    assert restored.banned() == {(key, world.carol)}
    assert restored.shown() == {(world.alice, key, number), (world.bob, key, number)}


def test_who_left_and_came_back_has_to_come_back_again(world: Backed) -> None:
    world.back_up()
    world.leave(world.member(world.friends, world.carol))
    world.join(world.group(world.friends), world.carol)
    restored = world.restore()
    assert world.carol not in {each.user_id for each in restored.memberships()}


def test_a_group_whose_admin_came_since_gets_another_one(world: Backed) -> None:
    world.back_up()
    dave = world.register("dave")
    world.join(world.group(world.friends), dave)
    world.promote(world.member(world.friends, dave))
    world.demote(world.member(world.friends, world.alice))
    restored = world.restore()
    admins = {each.user_id for each in restored.memberships() if each.role == "admin"}
    assert admins == {world.alice, world.bob}, "bob is that of the other group"


def test_whose_account_is_disabled_does_not_become_its_admin(world: Backed) -> None:
    world.back_up()
    dave = world.register("dave")
    world.join(world.group(world.friends), dave)
    world.promote(world.member(world.friends, dave))
    world.demote(world.member(world.friends, world.alice))
    world.disable(world.alice)
    restored = world.restore()
    admins = {each.user_id for each in restored.memberships() if each.role == "admin"}
    assert admins == {world.bob}, "of both groups"


def test_nobody_follows_an_admin_whose_account_was_disabled_in_the_copy(world: Backed) -> None:
    """Neither now nor then: an ordinary member has left, and an operator has enabled the account since."""
    world.disable(world.alice)
    world.back_up()
    with world.writing() as connection:
        accounts.enable(connection, world.alice)
    world.leave(world.member(world.friends, world.carol))
    restored = world.restore()
    admins = {(each.group.group_id, each.user_id) for each in restored.memberships() if each.role == "admin"}
    assert admins == {(world.friends, world.alice), (world.others, world.bob)}


def test_a_group_without_any_member_left_goes(world: Backed) -> None:
    world.send(world.member(world.others, world.alice))
    world.back_up()
    dave = world.register("dave")
    world.join(world.group(world.others), dave)
    for user in (world.alice, world.bob):
        world.leave(world.member(world.others, user))
    restored = world.restore()
    assert [each.group_id for each in restored.groups()] == [world.friends]
    restored.clean_up()
    assert restored.stored() == set()


def test_a_redacted_message_stays_redacted_and_a_timer_that_runs_goes_on(world: Backed) -> None:
    alice = world.member(world.friends, world.alice)
    world.send(alice, seconds=60)
    world.send(alice, seconds=DAY)
    world.back_up()
    world.read(world.member(world.friends, world.bob), 1)
    world.clock.advance(30)
    world.read(world.member(world.friends, world.bob), 2)
    world.clock.advance(31)
    before = world.shown()
    restored = world.restore()
    assert restored.shown() == before
    assert {(user, number) for user, _, number in before} == {
        *((world.alice, 2), (world.bob, 2)),
        *((world.carol, 1), (world.carol, 2)),
    }
    world.clock.advance(DAY - 31)
    assert (world.bob, 2) not in {(user, number) for user, _, number in restored.shown()}, "to the second"
    assert restored.shown() == world.shown()


def test_what_was_read_and_erased_while_the_ledger_could_not_be_written_stays_redacted(world: Backed) -> None:
    """The ledger tells of timers, but of one that went with its message before it could be told, nobody knows."""
    alice = world.member(world.friends, world.alice)
    gone, left = world.send(alice, seconds=HOUR), world.send(alice, seconds=DAY)
    world.back_up()
    for each in (world.bob, world.carol):
        world.read(world.member(world.friends, each), left)
    world.clock.advance(HOUR)
    world.tell()
    world.clean_up(can_tell=False)
    assert {number for _, number in world.stored()} == {left}
    restored = world.restore()
    assert {each[2] for each in restored.shown()} == {left}
    world.clock.advance(DAY - HOUR - 1)
    assert {each[2] for each in restored.shown()} == {left}, "the timers that are known go on"
    restored.clean_up()
    assert {number for _, number in restored.stored()} == {left}
    assert gone not in {each[2] for each in restored.shown()}


def test_a_timer_that_outlives_the_greatest_age_runs_on_although_old_entries_went(world: Backed) -> None:
    """Who has not read it by then does not see it any more; whose timer runs does, to its end."""
    max_age = world.config.policy.self_destruct_max_age
    number = world.send(world.member(world.friends, world.alice), seconds=365 * DAY)
    world.back_up()
    world.read(world.member(world.friends, world.bob), number)
    world.leave(world.member(world.friends, world.alice))
    world.beat()
    world.clock.advance(max_age + 30 * DAY)
    assert max_age + 30 * DAY < book.KEPT_SECONDS, "the backup is covered"
    world.clean_up()
    world.clean_up()
    expected = {(world.bob, number)}
    assert {(user, seen) for user, _, seen in world.shown()} == expected
    restored = world.restore()
    assert {(user, seen) for user, _, seen in restored.shown()} == expected
    restored.clean_up()
    assert {each for _, each in restored.stored()} == {number}, "nothing is erased that its policy does not name"


@pytest.mark.parametrize("fast", [10 * DAY, 400 * DAY])
def test_a_timer_that_a_fast_clock_has_set_ends_as_it_did_once_the_clock_was_accepted(world: Backed, fast: int) -> None:
    world.send(world.member(world.friends, world.alice), seconds=HOUR)
    world.back_up()
    world.clock.set_wrong(fast)
    for each in (world.bob, world.carol):
        world.read(world.member(world.friends, each), 1)
    world.beat()
    world.clock.set_wrong(-fast)
    world.accept_clock()
    world.clock.advance(HOUR - 1)
    before = world.shown()
    assert {user_id for user_id, *_ in before} == {world.alice, world.bob, world.carol}
    restored = world.restore()
    assert restored.shown() == before
    world.clock.advance(1)
    assert restored.shown() == world.shown() == set()
    restored.clean_up()
    assert restored.stored() == set()


def test_sessions_and_key_packages_go_and_passwords_that_changed_are_locked(world: Backed) -> None:
    with world.writing() as connection:
        sessions.add(connection, world.alice, "hash", b"token", world.clock.now(), DAY)
        key_packages.add(connection, world.alice, b"package", is_last_resort=False)
        key_packages.add(connection, world.alice, b"package", is_last_resort=True)
    world.back_up()
    with world.writing() as connection:
        accounts.reset_password(connection, world.alice, "other")
        accounts.disable(connection, world.bob)
    restored = world.restore()
    assert count(restored, "sessions") == count(restored, "key_packages") == 0
    assert world.done.locked == ["alice"]
    with restored.reading() as connection:
        assert users.credentials(connection, "alice") == (world.alice, ""), "no password matches"
        assert users.credentials(connection, "bob") is None, "disabled"
        assert users.credentials(connection, "carol") == (world.carol, "hash")


def test_invites_and_welcomes_that_were_answered_are_gone(world: Backed) -> None:
    dave, erin = world.register("dave"), world.register("erin")
    carried = [b"commit", b"welcome", b"info"]
    with world.writing() as connection:
        group, now = require_group(connection, world.friends), world.clock.now()
        for invitee in (dave, erin):
            invites.add(connection, group.group_key, world.alice, invitee, carried, now)
        for user in (world.bob, world.carol):
            welcomes.add(connection, group.group_key, user, bodies.put(connection, b"welcome"))
    world.back_up()
    with world.writing() as connection:
        inviting.cancel_pending(connection, group.group_key, dave, 0)
        [welcome] = connection.execute("SELECT welcome_id FROM welcomes WHERE user_id = ?", (world.bob,)).fetchone()
        assert welcomes.remove_received(connection, welcome, world.bob)
    restored = world.restore()
    with restored.reading() as connection:
        assert [row[0] for row in connection.execute("SELECT invitee_id FROM invites")] == [erin]
        assert [row[0] for row in connection.execute("SELECT user_id FROM welcomes")] == [world.carol]


@pytest.mark.parametrize("how", ["leaves", "is banned", "is demoted", "is disabled", "is deleted"])
def test_an_invite_whose_inviter_has_lost_the_right_does_not_come_back(world: Backed, how: str) -> None:
    dave, erin = world.register("dave"), world.register("erin")
    alice, bob = world.member(world.friends, world.alice), world.member(world.friends, world.bob)
    world.promote(bob)
    world.invite(alice, dave)
    world.invite(bob, erin)
    [kept] = [each for each in world.invited() if each[0] == world.bob]
    world.back_up()
    changes_of = {
        "leaves": lambda: world.leave(alice),
        "is banned": lambda: world.ban(bob, world.alice),
        "is demoted": lambda: world.demote(alice),
        "is disabled": lambda: world.disable(world.alice),
        "is deleted": lambda: world.delete_account(world.alice),
    }
    changes_of[how]()
    assert world.invited() == {kept}
    restored = world.restore()
    assert restored.invited() == {kept}
    assert count(restored, "invites") == 1


def test_a_ledger_that_tells_of_the_inviter_alone_ends_the_invite_too(world: Backed) -> None:
    """As one does that was written when invites outlived the right to invite."""
    world.invite(world.member(world.friends, world.alice), world.register("dave"))
    world.promote(world.member(world.friends, world.bob))
    world.back_up()
    with world.writing() as connection:
        connection.execute("UPDATE members SET role = 'member' WHERE user_id = ?", (world.alice,))
    restored = world.restore()
    assert count(restored, "invites") == 0


def test_holds_are_those_of_the_end(world: Backed) -> None:
    with world.writing() as connection:
        former = holds.add(connection, None, world.bob, "bob", "case 1", "operator root", 1)
    world.back_up()
    with world.writing() as connection:
        holds.remove(connection, former)
        key = require_group(connection, world.friends).group_key
        on_group = holds.add(connection, key, world.friends, "friends", "case 2", "operator root", 2)
        on_user = holds.add(connection, None, world.alice, "alice", "case 3", "operator root", 3)
    restored = world.restore()
    with restored.reading() as connection:
        found = {each.hold_id: (each.subject_id, each.name, each.covers) for each in holds.list_all(connection)}
    assert found == {on_group: (world.friends, "friends", "group"), on_user: (world.alice, "alice", "user")}
    assert b"case" not in world.ledger.read_bytes()


def test_a_group_that_was_made_private_is_private(world: Backed) -> None:
    with world.writing() as connection:
        connection.execute("UPDATE groups SET visibility = 'public'")
    world.back_up()
    with world.writing() as connection:
        connection.execute("UPDATE groups SET visibility = 'private' WHERE group_id = ?", (world.friends,))
    restored = world.restore()
    assert {each.group_id: each.visibility for each in restored.groups()} == {
        world.friends: "private",
        world.others: "public",
    }


def test_numbers_are_never_given_twice(world: Backed) -> None:
    """Not after one restore, nor after another one of the same backup."""
    alice = world.member(world.friends, world.alice)
    world.send(alice)
    world.fetch(world.member(world.friends, world.alice))
    world.back_up()
    lost = [world.send(alice) for _ in range(3)]
    given: list[int] = []
    world.beat()
    for place in range(3):
        restored = world.restored(world.folder / "copy.db", world.folder / f"restored{place}")
        restored.replay()
        restored.begin()
        member = next(each for each in restored.memberships() if each.member_id == alice.member_id)
        number = restored.send(member)
        assert number not in {*lost, *given}
        assert number == (place + 1) * NUMBERS + 1
        given.append(number)
        with restored.reading() as connection:
            found = members.find_by_key(connection, alice.member_id)
        assert found
        assert found.watermark == number, "who had fetched all has seen the own message"


def test_a_mark_does_not_hide_what_is_sent_after_the_restore(world: Backed) -> None:
    world.change_policy(world.group(world.others), 0)
    world.back_up()
    for _ in range(5):
        world.send(world.member(world.others, world.bob))
    for user in (world.alice, world.bob):
        world.fetch(world.member(world.others, user))
    world.clean_up()
    assert world.group(world.others).gone_below == 5
    restored = world.restore()
    number = restored.send(next(each for each in restored.memberships() if each.group.group_id == world.others))
    assert {each for _, _, each in restored.shown()} == {number}


def test_a_replay_may_be_repeated(world: Backed) -> None:
    world.back_up()
    world.leave(world.member(world.friends, world.carol))
    restored = world.restore()
    members_then, groups_then = restored.memberships(), count(restored, "groups")
    restored.replay()
    assert [each.member_id for each in restored.memberships()] == [each.member_id for each in members_then]
    assert count(restored, "groups") == groups_then


def test_an_older_backup_after_a_newer_one_learns_of_both(world: Backed) -> None:
    world.backup(world.folder / "older.db")
    world.leave(world.member(world.friends, world.carol))
    world.beat()
    world.back_up()
    world.leave(world.member(world.friends, world.bob))
    newer = world.restore()
    newer.leave(next(each for each in newer.memberships() if each.group.group_id == world.others))
    newer.beat()
    older = newer.restored(world.folder / "older.db", world.folder / "oldest")
    older.replay()
    assert {each.member_id for each in older.memberships()} == {each.member_id for each in newer.memberships()}


def test_what_the_copy_had_not_told_yet_is_told_by_it(world: Backed) -> None:
    world.leave(world.member(world.friends, world.carol))
    world.back_up()
    world.leave(world.member(world.friends, world.bob))
    restored = world.restore()
    drain(restored.path, world.ledger, world.clock.now())
    gone = [each.subject for each in book.entries(world.ledger, 0) if each.kind == "member" and each.state is None]
    assert len(set(gone)) == 2
    with restored.reading() as connection:
        assert not changes.is_older(changes.ledger_state(connection), book.tip(world.ledger))
        assert not changes.has_pending(connection)


def test_the_database_itself_is_no_older_copy(world: Backed) -> None:
    with world.reading() as connection:
        assert not changes.is_older(changes.ledger_state(connection), book.tip(world.ledger))
    world.back_up()
    world.beat()
    copy = world.restored(world.folder / "copy.db", world.folder / "restored")
    with copy.reading() as connection:
        assert changes.is_older(changes.ledger_state(connection), book.tip(world.ledger)), "by a line that only says so"


def test_time_does_not_go_back_with_the_copy(world: Backed) -> None:
    world.back_up()
    world.clock.advance(DAY)
    now = world.clock.now()
    restored = world.restore()
    with restored.reading() as connection:
        assert clock_state(connection).floor.acted_until == now


@pytest.mark.parametrize(
    ("harm", "told"), [("remove", "there is no ledger"), ("damage", "the ledger is damaged in the entry of change")]
)
def test_a_copy_is_refused_unless_the_ledger_tells_all(world: Backed, harm: str, told: str) -> None:
    world.back_up()
    world.leave(world.member(world.friends, world.carol))
    world.beat()
    if harm == "remove":
        world.ledger.unlink()
    else:
        ledgers.alter_last(world.ledger, "member")
    restored = world.restored(world.folder / "copy.db", world.folder / "restored")
    with pytest.raises(LedgerError, match=told):
        restored.replay()
    assert len(restored.memberships()) == 5, "nothing was done"
    with restored.reading() as connection:
        replay(connection, world.ledger, world.clock.now(), accept_incomplete=True)
    assert world.group(world.friends).last_seq < restored.groups()[0].last_seq


def test_a_copy_is_refused_if_the_ledger_was_replaced_by_one_from_before_it(world: Backed) -> None:
    older = world.ledger.read_bytes()
    world.beat()
    world.back_up()
    world.leave(world.member(world.friends, world.carol))
    world.beat()
    world.ledger.write_bytes(older)
    restored = world.restored(world.folder / "copy.db", world.folder / "restored")
    with pytest.raises(IncompleteError, match="is older than this backup: it is truncated, or was replaced by an o"):
        restored.replay()
    assert len(restored.memberships()) == 5, "nothing was done"
    assert world.ledger.read_bytes() == older


@pytest.mark.parametrize("sql", ["UPDATE entries SET at = at + 1 WHERE", "DELETE FROM entries WHERE"])
@pytest.mark.parametrize("count", [1, 2])
def test_a_copy_is_refused_if_the_last_entries_of_the_ledger_were_altered(world: Backed, sql: str, count: int) -> None:
    world.back_up()
    world.leave(world.member(world.friends, world.carol))
    world.beat()
    last = f"SELECT id FROM entries ORDER BY id DESC LIMIT {count}"
    assert ledgers.execute(world.ledger, f"{sql} id IN ({last})") == count
    restored = world.restored(world.folder / "copy.db", world.folder / "restored")
    with pytest.raises(IncompleteError, match=r"the ledger (is damaged in the entry of change|has \d+ entries of)"):
        restored.replay()


def test_a_copy_is_refused_if_the_ledger_tells_of_what_this_program_does_not_know(world: Backed) -> None:
    world.back_up()
    with world.writing() as connection:
        connection.execute("INSERT INTO ledger_changes (kind, subject) VALUES ('vote', 1)")
    world.beat()
    restored = world.restored(world.folder / "copy.db", world.folder / "restored")
    with pytest.raises(IncompleteError, match="has entries of the unknown kind 'vote': use a newer"):
        restored.replay()


@pytest.mark.parametrize("harm", ["missing", "cut"])
def test_after_a_restore_without_a_whole_ledger_it_covers_no_older_backup(world: Backed, harm: str) -> None:
    """What the ledger lacked then it still lacks, although it goes on."""
    world.backup(world.folder / "older.db")
    world.beat()
    early = world.ledger.read_bytes()
    world.leave(world.member(world.friends, world.carol))
    world.beat()
    world.back_up()
    if harm == "missing":
        world.ledger.unlink()
    else:
        world.ledger.write_bytes(early)
    restored = world.restored(world.folder / "copy.db", world.folder / "restored")
    with restored.reading() as connection:
        replay(connection, world.ledger, world.clock.now(), accept_incomplete=True)
    restored.begin()
    restored.beat()
    older = restored.restored(world.folder / "older.db", world.folder / "older")
    with pytest.raises(IncompleteError, match="does not reach back to this backup"):
        older.replay()
    restored.backup(world.folder / "newer.db")
    restored.leave(next(each for each in restored.memberships() if each.user_id == world.bob))
    restored.beat()
    newer = restored.restored(world.folder / "newer.db", world.folder / "newer")
    newer.replay()
    assert {each.member_id for each in newer.memberships()} == {each.member_id for each in restored.memberships()}


def test_a_ledger_that_lacks_a_restore_has_no_number_given_twice(world: Backed) -> None:
    """Each disaster takes the ledger along: only the keys tell of the former ones."""
    world.send(world.memberships()[0])
    world.back_up()
    given = set()
    for place in range(3):
        world.ledger.unlink()
        restored = world.restored(world.folder / "copy.db", world.folder / f"restored{place}")
        blocks = Inspection(world.config.keys_path).blocks() if place else []
        with restored.reading() as connection:
            replay(connection, world.ledger, world.clock.now(), blocks, accept_incomplete=True)
        given.add(restored.send(restored.memberships()[0]))
    assert len(given) == 3
    assert max(given) < 2**53, "readers of JSON have to hold it"


def test_what_ended_on_an_older_backup_does_not_end_on_a_newer_one(world: Backed) -> None:
    """It lacked members, so a group went that has some; and what came on it has the keys of what the newer one has."""
    world.backup(world.folder / "older.db")
    dave = world.register("dave")
    world.join(world.group(world.others), dave)
    for user in (world.alice, world.bob):
        world.leave(world.member(world.others, user))
    world.beat()
    own = world.create_group("own", world.carol, world.alice)
    world.send(world.member(own, world.carol))
    with world.writing() as connection:
        holds.add(connection, None, world.carol, "carol", "case 1", "operator root", 1)
    world.back_up()
    world.leave(world.member(world.friends, world.carol))
    world.beat()
    world.clock.advance(1)
    groups_then = {each.group_id for each in world.groups()}
    older = world.restored(world.folder / "older.db", world.folder / "older")
    older.replay()
    older.begin()
    assert [each.group_id for each in older.groups()] == [world.friends], "the others are dave's, who is not there yet"
    other = older.create_group("other", world.bob, world.alice)
    older.delete_group(next(each for each in older.groups() if each.group_id == other))
    with older.writing() as connection:
        holds.remove(connection, holds.add(connection, None, world.bob, "bob", "case 2", "operator root", 2))
    older.beat()
    for lost in (world, newer := world.restored(world.folder / "copy.db", world.folder / "newer")):
        with pytest.raises(IncompleteError, match="an older backup was restored and used since"):
            lost.replay()
    with newer.reading() as connection:
        replay(connection, world.ledger, world.clock.now(), accept_incomplete=True)
    assert {each.group_id for each in newer.groups()} == groups_then
    assert world.carol not in {each.user_id for each in newer.memberships() if each.group.group_id == world.friends}, (
        "what ended before the older one was restored has ended"
    )
    with newer.reading() as connection:
        assert [each.subject_id for each in holds.list_all(connection)] == [world.carol]
    newer.begin()
    newer.beat()
    with pytest.raises(IncompleteError):
        older.restored(world.folder / "older.db", world.folder / "again").replay()


def test_a_restore_that_nobody_has_used_counts_for_nothing(world: Backed) -> None:
    """The store that was moved away is put back, and its backups are as good as before."""
    world.backup(world.folder / "older.db")
    world.beat()
    world.back_up()
    world.beat()
    world.restored(world.folder / "older.db", world.folder / "tried").replay()
    newer = world.restored(world.folder / "copy.db", world.folder / "newer")
    newer.replay()
    assert len(newer.memberships()) == 5
    with world.reading() as connection:
        standing = changes.ledger_state(connection)
        assert not changes.is_older(standing, book.tip(world.ledger))
        changes.note_restored(connection, changes.resume_history(standing, world.ledger, world.clock.now()))
        assert changes.ledger_state(connection).restored == 2
    world.leave(world.member(world.friends, world.carol))
    world.beat()
    world.backup(world.folder / "last.db")
    world.leave(world.member(world.friends, world.bob))
    world.beat()
    for name in ("older.db", "copy.db", "last.db"):
        again = world.restored(world.folder / name, world.folder / f"again {name}")
        again.replay()
        assert {each.member_id for each in again.memberships()} == {each.member_id for each in world.memberships()}


def test_each_restore_is_kept_however_old_it_is(world: Backed) -> None:
    world.backup(world.folder / "older.db")
    world.beat()
    world.back_up()
    for _ in range(2):
        older = world.restored(world.folder / "older.db", world.folder / "older")
        older.replay()
        older.begin()
        older.beat()
        (world.folder / "older" / "hot.db").unlink()
    book.drop_old(world.ledger, world.clock.now() + 1, 0, 0)
    with pytest.raises(IncompleteError, match="an older backup was restored and used since"):
        world.restored(world.folder / "copy.db", world.folder / "newer").replay()


def test_what_two_servers_tell_one_ledger_is_not_taken_for_the_same(world: Backed) -> None:
    """A copy that is served beside the store, by the ledger of the store: what the store tells must not be lost."""
    world.back_up()
    for _ in range(5):
        world.beat()
    twin = world.restored(world.folder / "copy.db", world.folder / "twin")
    twin.delete_group(next(each for each in twin.groups() if each.group_id == world.others))
    with pytest.raises(LedgerError, match="has later changes than this database: another server writes to it"):
        drain(twin.path, twin.ledger, twin.clock.now())
    with twin.reading() as connection:
        assert changes.has_pending(connection), "nothing is forgotten that was not written"


def test_a_copy_from_before_what_the_ledger_keeps_is_refused(world: Backed) -> None:
    world.back_up()
    world.leave(world.member(world.friends, world.carol))
    world.beat()
    world.clock.advance(100)
    world.beat()
    book.drop_old(world.ledger, world.clock.now(), 0, 0)
    restored = world.restored(world.folder / "copy.db", world.folder / "restored")
    with pytest.raises(LedgerError, match="does not reach back to this backup"):
        restored.replay()


def test_the_ledger_of_another_database_is_never_replayed(world: Backed, tmp_path: Path) -> None:
    other = Backed(tmp_path / "other", world.clock, tmp_path / "other-vault").set_up()
    other.back_up()
    restored = other.restored(other.folder / "copy.db", tmp_path / "restored")
    with restored.reading() as connection, pytest.raises(LedgerError, match="of another database"):
        replay(connection, world.ledger, 0, accept_incomplete=True)


def test_neither_names_nor_bodies_nor_secrets_are_in_the_ledger(world: Backed) -> None:
    world.send(world.member(world.friends, world.alice), b"a secret body", seconds=60)
    world.read(world.member(world.friends, world.bob), 1)
    with world.writing() as connection:
        accounts.reset_password(connection, world.carol, "a secret hash")
    world.delete_account(world.alice)
    world.delete_group(world.group(world.friends))
    world.beat()
    text = world.ledger.read_bytes()
    assert not [each for each in (b"secret", b"alice", b"bob", b"carol", b"friends", b"others") if each in text]


def test_sends_fetches_and_new_members_write_nothing(world: Backed) -> None:
    before = world.ledger.read_bytes()
    dave = world.register("dave")
    world.create_group("new", dave, world.alice)
    world.send(world.member(world.friends, world.alice))
    world.send(world.member(world.friends, world.alice), seconds=60)
    world.fetch(world.member(world.friends, world.bob))
    drain(world.path, world.ledger, world.clock.now())
    assert world.ledger.read_bytes() == before


def test_many_changes_of_one_thing_are_one_entry(world: Backed) -> None:
    before = len(list(book.entries(world.ledger, 0)))
    for expiry in range(1, 20):
        world.change_policy(world.group(world.friends), expiry * HOUR)
    drain(world.path, world.ledger, world.clock.now())
    assert len(list(book.entries(world.ledger, 0))) == before + 1


def test_more_than_are_told_at_a_time_are_told(world: Backed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "CHANGES_PER_BATCH", 2)
    monkeypatch.setattr(changes, "TIMERS_PER_ENTRY", 2)
    for _ in range(5):
        world.send(world.member(world.friends, world.alice), seconds=60)
    world.back_up()
    world.read(world.member(world.friends, world.bob), 5)
    world.read(world.member(world.friends, world.carol), 4)
    for name in "abcde":
        world.delete_group(world.group(world.create_group(name, world.alice)))
    world.clock.advance(60)
    before = world.shown()
    assert world.restore().shown() == before


def test_no_run_begins_on_a_copy_that_has_learned_nothing(world: Backed) -> None:
    world.back_up()
    world.leave(world.member(world.friends, world.carol))
    world.beat()
    copy = world.restored(world.folder / "copy.db", world.folder / "restored")
    before = world.ledger.read_bytes()
    with pytest.raises(CleanupError, match="is a restored copy, to which the deletions"):
        copy.clean_up()
    assert world.ledger.read_bytes() == before
    copy.replay()
    copy.clean_up()


def test_a_message_that_was_too_old_under_former_settings_stays_redacted(world: Backed) -> None:
    world.send(world.member(world.friends, world.alice), seconds=DAY)
    world.back_up()
    with world.writing() as connection:
        connection.execute("UPDATE self_destructing SET ended = 1")
    restored = world.restore()
    assert {user_id for user_id, *_ in restored.shown()} == {world.alice}, "who has read it by sending it"
    world.clock.advance(DAY)
    assert restored.shown() == set()
    restored.clean_up()
    assert restored.stored() == set()


def test_a_message_that_was_taken_back_does_not_come_back(world: Backed) -> None:
    """Whether a run has erased it meanwhile or not; the members are told of it once more."""
    alice, bob = (world.member(world.friends, each) for each in (world.alice, world.bob))
    erased, hidden, kept = world.send(alice), world.send(bob), world.send(alice)
    world.back_up()
    world.take_back(alice, erased)
    world.tell()
    world.clean_up()
    world.take_back(bob, hidden)
    late = world.send(alice)
    world.take_back(alice, late)
    restored = world.restore()
    assert world.done.counts["messages_taken_back"] == 2
    assert {number for _, _, number in restored.shown()} == {kept}
    with restored.reading() as connection:
        told = connection.execute("SELECT sequence_num, taken_by, told_to FROM taken_back ORDER BY 1").fetchall()
        assert [tuple(row) for row in told] == [(erased, b"", 0), (hidden, b"", 0)]
    restored.clean_up()
    assert {number for _, number in restored.stored()} == {kept}


def test_what_was_taken_back_of_the_archive_does_not_come_back(world: Backed) -> None:
    number = world.send(world.member(world.friends, world.alice))
    key = world.group(world.friends).group_key
    with world.writing() as connection:
        connection.execute("UPDATE groups SET archived_seq = ? WHERE group_key = ?", (number, key))
        connection.execute("INSERT INTO archive_parts VALUES (?1, -1, 0, ?2, ?2, 0, 0, 1, 4, 0)", (key, number))
        connection.execute("DELETE FROM messages")
    world.back_up()
    with world.writing() as connection:
        taken_back.add(connection, key, number, TakenBack(world.clock.now(), world.alice))
    restored = world.restore()
    with restored.reading() as connection:
        assert taken_back.of_group(connection, key) == [number]


def test_a_message_that_was_erased_since_it_was_too_old_does_not_come_back_with_a_greater_age(world: Backed) -> None:
    """Whoever has not read it is not told by the ledger: that it was too old is all that has hidden it."""
    world.change_max_age(2 * DAY)
    alice, bob = (world.member(world.friends, each) for each in (world.alice, world.bob))
    world.send(alice, seconds=HOUR)
    world.clock.advance(DAY)
    young = world.send(alice, seconds=HOUR)
    world.back_up()
    world.clock.advance(DAY + 1)
    world.clean_up()
    assert {number for _, number in world.stored()} == {young}
    world.change_max_age(30 * DAY)
    restored = world.restore()
    assert {each[2] for each in restored.shown() if each[0] == bob.user_id} == {young}
    restored.clean_up()
    assert {number for _, number in restored.stored()} == {young}
    later = restored.send(alice, seconds=HOUR)
    restored.clock.advance(28 * DAY)
    assert {each[2] for each in restored.shown() if each[0] == bob.user_id} == {young, later}, "they have their time"


KILLED = """
import sys
from pathlib import Path
from contextlib import closing
from conclave.store.engine import sqlite
from conclave.store.ledger import book
from conclave.store.ledger.changes import drain
from conclave.actions.replay import replay
act, database, ledger = sys.argv[1], *map(Path, sys.argv[2:])
if act == "drain":
    drain(database, ledger, 1_700_000_000)
else:
    with closing(sqlite.connect(database)) as connection:
        replay(connection, ledger, 1_700_000_000)
"""


def killed(act: str, world: World, point: str, times: int = 1) -> None:
    """Do something in a process that is killed at a failpoint."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", dedent(KILLED), act, world.path, world.ledger],
        env=os.environ | {"CONCLAVE_FAILPOINT": f"{point}=kill@{times}"},
        check=False,
    )
    assert done.returncode == -9, f"{point} was not reached"


@pytest.mark.parametrize("point", LEDGER_POINTS)
def test_killed_while_it_is_told_nothing_is_forgotten(world: Backed, point: str) -> None:
    world.back_up()
    world.leave(world.member(world.friends, world.carol))
    killed("drain", world, point)
    restored = world.restore()
    assert world.carol not in {each.user_id for each in restored.memberships()}
    found = book.inspect(world.ledger)
    assert found
    assert found.damage == ""


@pytest.mark.parametrize(
    ("point", "times"),
    [(point, times) for point in REPLAY_POINTS for times in (1, 4) if times == 1 or "step" in point],
)
def test_killed_while_it_is_replayed_the_next_start_does_it_again(world: Backed, point: str, times: int) -> None:
    number = world.send(world.member(world.friends, world.bob))
    world.back_up()
    world.leave(world.member(world.friends, world.carol))
    world.delete_group(world.group(world.others))
    world.beat()
    restored = world.restored(world.folder / "copy.db", world.folder / "restored")
    killed("replay", restored, point, times)
    with restored.reading() as connection:
        assert changes.is_older(changes.ledger_state(connection), book.tip(world.ledger))
    assert len(restored.memberships()) == 5, "all or nothing"
    restored.replay()
    key = world.group(world.friends).group_key
    assert restored.shown() == {(world.alice, key, number), (world.bob, key, number)}
    assert [each.group_id for each in restored.groups()] == [world.friends]
