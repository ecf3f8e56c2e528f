"""The sentences of log lines for people."""

from typing import Any

import pytest

from conclave.logs.lines import ConsoleRenderer

RUN: dict[str, Any] = {
    "event": "cleanup_run",
    "job": "everything",
    "started_at": 100,
    "finished_at": 102,
    "error": "",
    "bytes_returned": 24_600,
    "archived": 0,
    "archive_bytes_returned": 0,
    "held": 0,
    "deleted": {"expired": 30, "fetched": 10, "sessions": 0},
}
LISTENING = {
    "event": "listening",
    "url": "http://127.0.0.1:8080",
    "admin_url": "http://127.0.0.1:9090",
    "database": "/srv/chat.db",
    "version": "1.0.0",
    "configuration": "/etc/conclave/config.toml",
    "retention": "at most 30 days",
    "cleanup": "spark, every 1 hour",
    "archive": "off",
}


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (RUN, "cleanup: 40 erased (30 expired, 10 fetched), 24 KB returned, 2 s"),
        (
            RUN | {"deleted": {}, "bytes_returned": 0, "finished_at": 100, "archived": 5, "held": 2, "job": "up to 3d"},
            "cleanup (up to 3d): 0 erased, 5 archived, 2 kept by holds, 0 B returned, less than 1 s",
        ),
        (
            RUN | {"error": "the disk\nis full", "level": "error"},
            "error: cleanup: failed: the disk\\nis full; 40 erased (30 expired, 10 fetched),"
            " 24 KB returned, 2 s",
        ),
        (
            LISTENING,
            "conclave 1.0.0; listening at http://127.0.0.1:8080, for operators at http://127.0.0.1:9090;"
            " configuration: /etc/conclave/config.toml; database: /srv/chat.db; retention: at most 30 days;"
            " cleanup: spark, every 1 hour; archive: off",
        ),
        (
            {"event": "reloaded", "logs_from": "info", "certificate": "read again"},
            "reloaded: log level info; the certificate was read again",
        ),
        (
            {"event": "reloaded", "logs_from": "error", "certificate": "none"},
            "reloaded: log level error",
        ),
        (
            {"event": "reload_refused", "fault": "zzz: unknown", "level": "error"},
            "error: reload refused, nothing has changed: zzz: unknown",
        ),
        (
            {"event": "needs_restart", "settings": ["admin.listen_port", "spark.master"], "level": "warning"},
            "warning: needs a restart: admin.listen_port, spark.master",
        ),
        ({"event": "stopped"}, "stopped"),
        ({"event": "storage_fault", "level": "error", "room": None, "is_full": True},
         "error: storage fault: room none, is full yes"),
        ({"event": "cleanup_ready", "engine": "sql", "interval_seconds": 5400},
         "cleanup is ready: sql, every 90 minutes"),
        (
            {"event": "policy_changed", "changed": {"message_retention": [-1, 60]}, "groups": 2, "messages_hidden": 5,
             "archived_hidden": 7, "is_exact": False, "groups_erased_sooner": 2},
            "policy changed: message_retention from -1 to 60; 2 groups have another policy, 5 messages hidden at once,"
            " and at most 7 in the archive",
        ),
    ],
)  # fmt: skip
def test_events_have_their_sentences(told: dict[str, Any], words: str) -> None:
    assert ConsoleRenderer(coloured=False)(None, "", dict(told)).partition(" ")[2] == words


def test_a_traceback_has_its_lines_and_nothing_that_a_terminal_would_obey() -> None:
    told = {"event": "request_failed", "level": "error", "exception": "Traceback\n  File x\nOSError: a\x9b31m\x1b[2J"}
    shown = ConsoleRenderer(coloured=False)(None, "", told)
    assert shown.split("\n")[1:] == ["Traceback", "  File x", r"OSError: a\x9b31m\x1b[2J"]
