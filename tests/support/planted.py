"""Faults of governance to plant, in this process or in one that does runs: each breaks one rule of the contract."""

import sqlite3
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from conclave.events import MessageStored
from conclave.retention import due, fate, marks, plan, rehearsal, rules, visibility
from conclave.retention.policy import FOREVER, GroupPolicy
from conclave.retention.resolve import PolicySettings
from conclave.store.resources import groups, members, messages, taken_back
from spark import apply

Plant = Callable[[pytest.MonkeyPatch], None]


def ignores_overrides_in_marks(patch: pytest.MonkeyPatch) -> None:
    """An override that comes or goes settles no mark."""
    settle = marks.settle

    def without(connection: sqlite3.Connection, settings: PolicySettings, at: int, key: int | None = None) -> None:
        for row in connection.execute("SELECT group_key, group_id, policy_source FROM groups").fetchall():
            if row["policy_source"] == "override" or row["group_id"] in settings.overrides:
                marks.write(connection, settings, row["group_key"])
        settle(connection, settings, at, key)

    patch.setattr(marks, "settle", without)


def erases_a_second_early(patch: pytest.MonkeyPatch) -> None:
    """The least lifetime is off by one."""
    for module, name in ((rules, "_LIMITS"), (plan, "_GROUPS"), (due, "GOVERNED")):
        right = getattr(module, name)
        assert "least_lifetime + 1" in right
        patch.setattr(module, name, right.replace("least_lifetime + 1", "least_lifetime + 2"))


def hides_a_second_late(patch: pytest.MonkeyPatch) -> None:
    expires_before = GroupPolicy.expires_before
    patch.setattr(GroupPolicy, "expires_before", lambda policy, now: max(0, expires_before(policy, now) - 1))


def keeps_the_floor_at_a_join(patch: pytest.MonkeyPatch) -> None:
    """The newcomer, who has fetched nothing, counts before it is noted what all have fetched."""
    add, advance = members.add, marks.advance_floor

    def add_alone(*args: Any, **kwargs: Any) -> None:
        patch.setattr(marks, "advance_floor", lambda *_: None)
        try:
            add(*args, **kwargs)
        finally:
            patch.setattr(marks, "advance_floor", advance)

    patch.setattr(members, "add", add_alone)


def forgets_commits_below(patch: pytest.MonkeyPatch) -> None:
    """Only those who are members now count, for commits that are kept until all have fetched them."""
    least = "ifnull((SELECT min(watermark) FROM members WHERE members.group_key = groups.group_key), 0)"
    patch.setattr(rules, "COMMITS_ABOVE", least)


def lets_a_mark_fall(patch: pytest.MonkeyPatch) -> None:
    """A purge sets the mark where it wants it."""

    def hide_before(connection: sqlite3.Connection, group_key: int, before: int) -> None:
        connection.execute("UPDATE groups SET expired_before = ? WHERE group_key = ?", (before, group_key))

    patch.setattr(marks, "hide_before", hide_before)


def settles_nothing_at_a_start(patch: pytest.MonkeyPatch) -> None:
    """The new policies count, and what the former ones have hidden comes back."""
    patch.setattr(marks, "settle", lambda connection, settings, *_: marks.write(connection, settings))


def settles_as_of_the_start(patch: pytest.MonkeyPatch) -> None:
    """What would have expired while the server was stopped is hidden, although a longer policy follows."""
    settle = rehearsal.settle
    patch.setattr(rehearsal, "settle", lambda connection, old, new, _, now: settle(connection, old, new, now, now))


def job_ignores_past_marks(patch: pytest.MonkeyPatch) -> None:
    marked = "(covered OR redacts OR {is_past})"
    assert marked in plan._GROUPS
    patch.setattr(plan, "_GROUPS", plan._GROUPS.replace(marked, "(covered OR redacts)"))


def raises_no_mark(patch: pytest.MonkeyPatch) -> None:
    """What all have fetched comes back where a hold keeps it."""
    patch.setattr(apply, "_raise_marks", lambda *_: False)


def leaves_the_mode_quietly(patch: pytest.MonkeyPatch) -> None:
    """Leaving delete-after-fetch does not hide what all have fetched."""
    settle = marks.settle

    def without(connection: sqlite3.Connection, *args: Any) -> None:
        before = connection.execute("SELECT gone_below, group_key FROM groups").fetchall()
        settle(connection, *args)
        connection.executemany("UPDATE groups SET gone_below = ? WHERE group_key = ?", before)

    patch.setattr(marks, "settle", without)


def enters_the_mode_with_an_old_floor(patch: pytest.MonkeyPatch) -> None:
    """What former members have fetched counts for those who are members now."""
    settle = marks.settle

    def without(connection: sqlite3.Connection, *args: Any) -> None:
        before = connection.execute("SELECT floor_seq, group_key FROM groups").fetchall()
        settle(connection, *args)
        connection.executemany("UPDATE groups SET floor_seq = max(floor_seq, ?) WHERE group_key = ?", before)

    patch.setattr(marks, "settle", without)


def counts_unread_as_read(patch: pytest.MonkeyPatch) -> None:
    """Whoever sends counts as having fetched what others sent before."""
    append_all = messages.append_all

    def append(connection: sqlite3.Connection, drafts: Any, now: int) -> list[MessageStored]:
        stored = append_all(connection, drafts, now)
        connection.executemany(
            "UPDATE members SET watermark = ? WHERE group_key = ? AND user_id = ?",
            [(each.sequence_num, each.group_key, each.sender_id) for each in stored],
        )
        return stored

    patch.setattr(messages, "append_all", append)


def forgets_the_least_lifetime_of_deleted_groups(patch: pytest.MonkeyPatch) -> None:
    remove = groups.remove

    def without(connection: sqlite3.Connection, group: groups.GroupRow, now: int) -> list[bytes]:
        invited = remove(connection, group, now)
        connection.execute("UPDATE tombstones SET least_lifetime = 0 WHERE group_key = ?", (group.group_key,))
        return invited

    patch.setattr(groups, "remove", without)


def forgets_holds_on_users(patch: pytest.MonkeyPatch) -> None:
    """In the hot store."""
    patch.setattr(rules, "has_held_senders", lambda _: False)
    patch.setattr(due, "_PARAMETERS", due._PARAMETERS._replace(unheld=""))


def explains_without_holds(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fate, "_holds", lambda *_: ())


def explains_a_floor_of_former_times(patch: pytest.MonkeyPatch) -> None:
    """Explain does not know what the next run will find fetched."""
    assert "sequence_num <= gone THEN" in fate._RULES
    patch.setattr(fate, "_RULES", fate._RULES.replace("sequence_num <= gone THEN", "sequence_num <= gone_below THEN"))


def forgets_holds_on_users_in_the_archive(patch: pytest.MonkeyPatch) -> None:
    from spark.archive import expiry_plan  # only a process with Spark has it

    patch.setattr(expiry_plan, "HELD_SENDERS", "SELECT user_id FROM users WHERE FALSE")


def erases_young_ones_in_the_archive(patch: pytest.MonkeyPatch) -> None:
    from spark.archive import expiry_plan  # as above

    make_plan, some_of_part, withheld = expiry_plan.make_plan, rules.some_of_part, "(oldest < erasable_before AND "

    def some_of_any_age(*args: Any) -> str:
        found = some_of_part(*args)
        assert withheld in found
        return found.replace(withheld, "(")

    patch.setattr(rules, "some_of_part", some_of_any_age)

    def make_plan_of_all(*args: Any, **named: Any) -> expiry_plan.ArchivePlan:
        plan = make_plan(*args, **named)
        plan.groups = {key: (*row[:4], FOREVER, *row[5:]) for key, row in plan.groups.items()}
        return plan

    patch.setattr(expiry_plan, "make_plan", make_plan_of_all)


def explains_without_timers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fate, "_timer", lambda *_: None)
    patch.setattr(fate, "_RULES", fate._RULES.replace(rules.IS_REDACTED, "FALSE"))


def waits_for_what_nobody_sees(patch: pytest.MonkeyPatch) -> None:
    """A group of which only timers have let something go belongs to a purge job by its lifetime alone."""
    redacts = "(covered OR redacts OR {is_past})"
    assert redacts in plan._GROUPS
    patch.setattr(plan, "_GROUPS", plan._GROUPS.replace(redacts, redacts.replace("redacts OR ", "")))


def foretells_what_nobody_sees(patch: pytest.MonkeyPatch) -> None:
    """A change of policy hides anew what has destroyed itself."""
    patch.setattr(rehearsal, "IS_REDACTED", "FALSE")


def forgets_what_was_too_old(patch: pytest.MonkeyPatch) -> None:
    """A greater age brings back what was too old by the former one."""
    patch.setattr(marks, "stop_new_timers", lambda *_: None)


def explains_without_taking_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fate, "_RULES", fate._RULES.replace(rules.IS_TAKEN_BACK, "FALSE"))


def waits_for_what_was_taken_back(patch: pytest.MonkeyPatch) -> None:
    """A group of which only something was taken back belongs to a purge job by its lifetime alone."""
    waits_for_what_nobody_sees(patch)


def foretells_what_was_taken_back(patch: pytest.MonkeyPatch) -> None:
    """A change of policy hides anew what was taken back."""
    patch.setattr(rehearsal, "IS_TAKEN_BACK", "FALSE")


def shows_what_was_taken_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(visibility, "_TIMED", visibility._TIMED.replace("WHEN taken_at IS NOT NULL", "WHEN FALSE"))


def takes_back_commits(patch: pytest.MonkeyPatch) -> None:
    """What others need to follow a group goes."""
    find = messages.find_sent

    def found(*args: Any) -> fate.MessageFacts | None:
        sent = find(*args)
        return sent and replace(sent, is_commit=False)

    patch.setattr(messages, "find_sent", found)


def leaves_what_was_taken_back_in_the_archive(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(taken_back, "of_group", lambda *_: [])


HOT: dict[str, Plant] = {
    plant.__name__: plant
    for plant in (
        *(ignores_overrides_in_marks, erases_a_second_early, hides_a_second_late, keeps_the_floor_at_a_join),
        *(forgets_commits_below, lets_a_mark_fall, settles_nothing_at_a_start, settles_as_of_the_start),
        *(job_ignores_past_marks, raises_no_mark, leaves_the_mode_quietly, enters_the_mode_with_an_old_floor),
        *(counts_unread_as_read, forgets_the_least_lifetime_of_deleted_groups, forgets_holds_on_users),
        *(explains_without_holds, explains_a_floor_of_former_times),
    )
}
ARCHIVED: dict[str, Plant] = {
    plant.__name__: plant
    for plant in (
        *(forgets_holds_on_users_in_the_archive, erases_young_ones_in_the_archive),
        *(leaves_what_was_taken_back_in_the_archive,),
    )
}
TIMED: dict[str, Plant] = {
    plant.__name__: plant
    for plant in (
        *(explains_without_timers, waits_for_what_nobody_sees, foretells_what_nobody_sees, forgets_what_was_too_old),
    )
}
"""Faults that only self-destructing messages show."""
TAKEN: dict[str, Plant] = {
    plant.__name__: plant
    for plant in (
        *(explains_without_taking_back, waits_for_what_was_taken_back, foretells_what_was_taken_back),
        *(shows_what_was_taken_back, takes_back_commits),
    )
}
"""Faults that only taking back shows."""
FAULTS = HOT | ARCHIVED
