"""`conclave check-config`: faults, lengths of time in words, doubts, and what a configuration would do."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from click.testing import CliRunner, Result

from conclave.cli.main import main
from conclave.clock import SystemClock
from conclave.config.load import parse_config
from conclave.retention.policy import KEEP
from conclave.store.engine import schema, sqlite
from conclave.store.resources import state
from tests.retention.test_rehearsal import Group, Sent, digest, fill
from tests.support import stores
from tests.support.server import capless

NOW = SystemClock().now()
DAY = 86_400


def check(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["check-config", *arguments])


def checked(config: Path, status: int = 0) -> dict[str, Any]:
    done = check(str(config), "--json")
    assert done.exit_code == status, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder: Path, text: str) -> Path:
    path = folder / "new.toml"
    path.write_text(text)
    return path


def serve(folder: Path, *ages: int, settings: str = "") -> Path:
    """Make a database with a group of messages of these ages in seconds, which was served with ``settings``."""
    path = folder / "conclave.db"
    config = parse_config(settings, "x")
    stores.prepare(path)
    with closing(sqlite.connect(path)) as connection, sqlite.write_transaction(connection):
        group = Group(KEEP, 0, 0, 0, 0, [0], 0, [Sent(each, 0, False, 0) for each in range(1, len(ages) + 1)])
        fill(connection, [group], set())
        for number, age in enumerate(ages, 1):
            connection.execute("UPDATE messages SET created_at = ? WHERE sequence_num = ?", (NOW - age, number))
        connection.execute("UPDATE groups SET expired_before = 0")
        state.begin_serving(connection, config.policy, SystemClock().read())
    with closing(sqlite.connect(path)) as connection:
        assert sqlite.truncate_wal(connection)
    return path


def test_every_fault_is_a_line_and_the_status_is_1(folder: Path) -> None:
    config = write(folder, 'message_retention = "5x"\n[retention]\nenabled = 1\npurge_jobs = [{}]\n')
    done = check(str(config))
    assert (done.exit_code, done.stdout) == (1, "")
    assert [line.partition(": must")[0].partition(": is")[0] for line in done.stderr.splitlines()] == [
        f"conclave: {config}: message_retention: '5x' is not a duration: a positive integer and a unit"
        ' (s, min, h, d, w, mo, y), as in "30d", "-1" or "0"',
        f"conclave: {config}: retention.enabled",
        f"conclave: {config}: retention.purge_jobs.1.interval",
    ]
    as_json = check(str(config), "--json")
    assert as_json.exit_code == 1
    assert len(json.loads(as_json.stdout)["faults"]) == 3


def test_a_file_that_is_not_there_is_a_fault(folder: Path) -> None:
    done = check("none.toml")
    assert done.exit_code == 1
    assert done.stderr.startswith("conclave: none.toml: cannot be read")


def test_without_a_file_it_checks_what_the_server_would_use(folder: Path) -> None:
    assert "the built-in defaults" in check().stdout
    (folder / "conclave.toml").write_text('cleanup_interval = "90s"')
    assert json.loads(check("--json").stdout)["durations"]["cleanup_interval"] == 90


def test_lengths_of_time_are_told_in_seconds_and_in_words(folder: Path) -> None:
    group = str(UUID(int=7))
    config = write(
        folder,
        f"""
        message_retention = "0"
        cleanup_interval = "90min"
        [retention]
        default_policy.max_lifetime = "1y"
        limits.min_lifetime = {{ min = "0", max = "36h" }}
        groups."{group}".max_lifetime = "1d"
        purge_jobs = [{{ interval = "1h" }}]
        """,
    )
    found = checked(config)["durations"]
    assert found["token_ttl_seconds"] == 2_592_000
    nested = {name.removeprefix("retention."): seconds for name, seconds in found.items() if name.count(".") > 1}
    assert nested == {
        "default_policy.max_lifetime": 365 * DAY,
        "limits.min_lifetime.min": 0,
        "limits.min_lifetime.max": 36 * 3600,
        f"groups.{group}.max_lifetime": DAY,
        "purge_jobs.1.interval": 3600,
    }
    rows = {
        cells[0]: cells[1:]
        for line in check(str(config)).stdout.splitlines()
        if len(cells := [cell.strip() for cell in line.strip("│ ").split("│")]) == 3
    }
    assert rows["message_retention"] == ["0", "delete-after-fetch"]
    assert rows["cleanup_interval"] == ["5,400", "90 minutes"]
    assert rows["token_ttl_seconds"] == ["2,592,000", "30 days"]
    assert rows["archive.after"] == ["-1", "off"]
    assert rows["retention.limits.min_lifetime.max"] == ["129,600", "36 hours"]
    assert rows[f"retention.groups.{group}.max_lifetime"] == ["86,400", "1 day"]


def test_what_is_doubtful_is_warned_of(folder: Path) -> None:
    serve(folder)
    config = write(
        folder,
        f"""
        message_retention = "1m"
        retention.groups."{UUID(int=7)}" = {{}}
        retention.purge_jobs = [{{ interval = "1h", longest_max_lifetime = "3d" }}]
        """,
    )
    warned = [(each["setting"], each["means"]) for each in checked(config)["warnings"]]
    assert [setting for setting, _ in warned] == [
        "message_retention",
        "retention.purge_jobs",
        "message_retention",
        f"retention.groups.{UUID(int=7)}",
    ]
    shown = check(str(config)).stdout
    assert all(f"warning: {setting}: {means}" in shown for setting, means in warned)


def test_a_vault_that_cannot_be_written_or_would_be_lost_is_warned_of(folder: Path) -> None:
    (folder / "conclave.data").mkdir()
    (folder / "odd" / "ledger").mkdir(parents=True)
    for path, told in (
        ("odd", "is not a file"),
        ("conclave.data/vault", "is in the data directory"),
    ):
        warned = checked(write(folder, f'[vault]\npath = "{folder / path}"\n'))["warnings"]
        assert [each["setting"] for each in warned] == ["vault.path"]
        assert told in warned[0]["means"]
    assert checked(write(folder, ""))["warnings"] == [], "the first start makes it"


def test_without_a_database_only_the_file_counts(folder: Path) -> None:
    config = write(folder, "")
    done = check(str(config))
    assert done.exit_code == 0
    assert f"not compared with a database: {folder}/conclave.db: no such database" in done.stdout
    assert checked(config)["foresight"] is None
    assert not (folder / "conclave.db").exists()


def test_a_database_of_an_older_version_is_not_compared(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(folder)
    steps = schema.migrations()
    monkeypatch.setattr(schema, "migrations", lambda: [*steps, (len(steps) + 1, "")])
    assert f"its schema version is {len(steps)}" in checked(write(folder, ""))["uncompared"]


def test_a_database_that_was_never_served_is_not_compared(folder: Path) -> None:
    stores.prepare(folder / "conclave.db")
    assert "has not been used by a server yet" in checked(write(folder, ""))["uncompared"]


def test_what_is_no_database_is_a_fault(folder: Path) -> None:
    (folder / "conclave.db").write_bytes(b"something else" * 100)
    found = checked(write(folder, ""), status=1)
    assert found["uncompared"]
    [fault] = found["faults"]
    assert "file is not a database" in fault


def test_it_tells_what_a_change_would_hide_and_erase_and_touches_nothing(folder: Path) -> None:
    path = serve(folder, 40 * DAY, 35 * DAY, 20 * DAY, DAY, settings='message_retention = "38d"')
    config = write(folder, 'message_retention = "30d"')
    former = digest(path)
    found = checked(config, status=1)
    seen = found["foresight"]
    assert digest(path) == former
    assert (seen["differing"], seen["clock_fault"], seen["unknown_groups"]) == (["message_retention"], "", [])
    change = seen["change"]
    # The bodies have one byte more than their number.
    assert [change[name] for name in ("groups", "hiding", "messages", "body_bytes", "total")] == [1, 1, 1, 3, 4]
    assert (seen["now_erased"]["counts"]["expired"], seen["now_erased"]["body_bytes"]) == (1, 2)
    assert (seen["then_erased"]["counts"]["expired"], seen["then_erased"]["body_bytes"]) == (2, 5)
    done = check(str(folder / "new.toml"))
    assert "message_retention: this change would hide 1 of 4 messages at once" in done.stderr
    assert "the server would refuse to start" in done.stdout
    for line in (
        "changed: message_retention: affects the policy of 1 group",
        "starting with it would hide 1 message (3 bytes) in the database and 0 (0 bytes) in the archive, in 1 group",
        "a run under the settings in force would erase 1 message (2 bytes) in the database and 0 (0 bytes) in the"
        " archive, in 1 group",
        "a run after a start with it would erase 2 messages (5 bytes) in the database and 0 (0 bytes) in the archive,"
        " in 1 group",
    ):
        assert line in done.stdout.splitlines()


def test_an_unchanged_policy_is_said_to_be_the_one_in_force(folder: Path) -> None:
    serve(folder, DAY)
    shown = check(str(write(folder, "listen_port = 1234"))).stdout.splitlines()
    assert "the policy is unchanged" in shown
    assert not [line for line in shown if "after a start" in line]


def test_what_is_erased_sooner_is_told(folder: Path) -> None:
    serve(folder, DAY, settings="retention.enabled = false")
    shown = check(str(write(folder, ""))).stdout
    assert "in 1 group, messages may be erased earlier than before" in shown


def test_a_wrong_clock_is_told(folder: Path) -> None:
    path = serve(folder, DAY)
    with closing(sqlite.connect(path)) as connection:
        connection.execute("UPDATE server_state SET clock_fault = 'it stood still'")
    done = check(str(write(folder, "")))
    assert done.exit_code == 0
    assert "warning: the clock is wrong: it stood still" in done.stdout


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ('tls_cert_path = "none"\ntls_key_path = "none"', "tls_cert_path: none: No such file or directory"),
        ('tls_cert_path = "text"\ntls_key_path = "text"', "tls_cert_path: text: contains no certificate in PEM"),
        ('[admin]\ntoken_file = "none"', "admin.token_file: none: No such file or directory"),
        ('[admin]\ntoken_file = "text"', "admin.token_file: text: must have 32 to 1024 visible ASCII characters"),
    ],
)
def test_files_with_which_no_server_starts_are_faults(folder: Path, settings: str, fault: str) -> None:
    (folder / "text").write_text("nothing")
    path = write(folder, settings)
    done = check(str(path))
    assert done.exit_code == 1
    assert f"conclave: {path}: {fault}" in done.stderr
    assert check(str(path), "--json").exit_code == 1


def test_files_that_only_the_server_may_read_are_warnings(folder: Path) -> None:
    for name in ("key.pem", "token"):
        (folder / name).write_text("secret")
        (folder / name).chmod(0)
    write(folder, 'tls_cert_path = "key.pem"\ntls_key_path = "key.pem"\n[admin]\ntoken_file = "token"\n')
    done = capless("-P", "-m", "conclave", "check-config", "new.toml", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    warned = {each["setting"]: each["means"] for each in json.loads(done.stdout)["warnings"]}
    assert "Permission denied" in warned["tls_cert_path"]
    assert "Permission denied" in warned["admin.token_file"]


def test_folders_that_only_the_server_may_enter_are_warnings(folder: Path) -> None:
    """As those of the guide, for an operator who is another user."""
    (folder / "server").mkdir(mode=0)
    write(folder, 'database_path = "server/conclave.db"\n')
    done = capless("-P", "-m", "conclave", "check-config", "new.toml", "--json", cwd=folder)
    (folder / "server").chmod(0o700)
    assert (done.returncode, done.stderr) == (0, "")
    warned = {each["setting"]: each["means"] for each in json.loads(done.stdout)["warnings"]}
    assert "Permission denied" in warned[f"{folder}/server/conclave.data"]
    assert "Permission denied" in warned["vault.path"]


def test_a_name_that_is_too_long_is_a_fault(folder: Path) -> None:
    done = check(str(write(folder, f'[vault]\npath = "{"v" * 300}"\n')))
    assert done.exit_code == 1
    assert f"{'v' * 300}/keys: File name too long" in done.stderr
