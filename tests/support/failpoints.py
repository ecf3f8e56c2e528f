"""The points of ``conclave.failpoints`` that tests try, by when they are reached."""

POINTS = (
    "writer.begun",
    "writer.applied",
    "writer.before_commit",
    "writer.after_commit",
    "send.numbered",
    "send.stored",
    "commit.message_stored",
    "commit.info_replaced",
    "create_group.added",
    "update_group.settled",
    "join.floor_raised",
    "leave.committed",
    "leave.removed",
    "delete_group.bodies_erased",
    "delete_group.removed",
    "accept.member_added",
    "accept.stored",
    "timers.begun",
    "read.noted",
    "read.started",
    "timers.ended",
    "timers.told",
    "timers.published",
    "timers.forgotten",
    "timers.swept",
    "taken_back.noted",
    "taken_back.told",
    "taken_back.published",
    "taken_back.erased",
    "key_package.taken",
    "delete_account.left",
    "delete_account.removed",
    "plan.read",
    "plan.made",
    "apply.begun",
    "apply.marks_raised",
    "apply.messages_deleted",
    "apply.before_commit",
    "apply.after_commit",
    "erase.before_wal",
    "erase.after_wal",
    "report.before",
    "report.stored",
)

ARCHIVE_POINTS = (
    "archive.turn_noted",
    "archive.turn_begun",
    "archive.fixed",
    "archive.written",
    "archive.appended",
    "archive.verified",
    "archive.group_switched",
    "archive.copies_chunk_deleted",
    "archive.copies_deleted",
    "archive.finished",
    "archive.part_erased",
    "archive.erased_by_keys",
    "archive.forgotten",
    "archive.parts_dropped",
    "archive.rewritten",
    "archive.space_noted",
    "archive.before_erase",
    "archive.file_removed",
    "archive.erased",
)
"""Reached only in runs that change the archive."""

SPACE_POINTS = ("erase.freed",)
"""Reached only if a fifth of the database's file is free."""

CLOCK_POINTS = ("clock.brought_back",)
"""Reached only if an operator accepts the clock."""

RESTORE_POINTS = ("restore.copied", "restore.before_switch", "restore.switched")
"""Reached only if a group is restored from the archive."""

LEDGER_POINTS = ("ledger.claimed", "ledger.written", "ledger.synced", "ledger.forgotten")
"""Reached only if the purge ledger is written."""

DROPPING_POINTS = ("ledger.dropped",)
"""Reached only if the ledger has obsolete entries."""

REPLAY_POINTS = ("ledger.step_replayed", "ledger.replayed", "ledger.written", "ledger.synced")
"""Reached only if the ledger is replayed on a restored database."""

EXPERIMENT_POINTS = tuple(f"experiment.{each}" for each in ("opened", "sent", "deleted", "erased", "removed"))
"""Reached only if an operator verifies erasure."""

BACKUP_POINTS = (
    "backup.begun",
    "backup.file_taken",
    "backup.archive_taken",
    "backup.caught_up",
    "backup.database_taken",
    "backup.checked",
    "backup.manifest_written",
    "backup.completed",
    "backup.renamed_away",
)
"""Reached only while a backup is made. The points of the archive's files are reached only if there is an archive."""

RETURN_POINTS = (
    "return.begun",
    "return.database_copied",
    "return.archive_copied",
    "return.vault_placed",
    "return.settled",
    "return.erased",
    "return.placing",
    "return.archive_placed",
    "return.database_placed",
    "return.placed",
)
"""Reached only while a backup is restored."""

SLEEP_POINTS = ("worker.told_asleep", "worker.java_ended")
"""Reached only if a worker exits until its next run."""

KEY_POINTS = (
    "keys.appended",
    "keys.synced",
    "keys.overwritten",
    "keys.anew_begun",
    "keys.anew_written",
    "keys.linked",
    "keys.replaced",
    "keys.former_overwritten",
    "keys.former_removed",
)
"""Reached only if the key file changes: between any two of its writes."""

LOSING_POINTS = ("run.keys_noted", "run.keys_lost")
"""Reached only in runs that erase keys."""

COPYING_POINTS = ("vault.keys_copied", "vault.ledger_copied")
"""Reached only if a copy of the vault is renewed."""
