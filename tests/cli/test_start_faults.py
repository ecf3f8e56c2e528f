"""What keeps a server from starting is told in one line that says what to do, and nothing is begun."""

import json
import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import stores
from tests.support.certificate import make_certificate
from tests.support.server import ServerProcess, capless, conclave

pytestmark = pytest.mark.system

BASE = 'listen_port = 0\n{}\n[cleanup]\nengine = "sql"\ndisk_reserve = "0"\n[admin]\nlisten_port = 0\n{}\n'


EXPIRED = """
[ca]
default_ca = a
[a]
database = index
new_certs_dir = .
rand_serial = yes
private_key = key.pem
default_md = sha256
default_startdate = 20200101000000Z
default_enddate = 20200201000000Z
policy = p
[p]
commonName = supplied
"""
"""Has openssl make a certificate that has expired."""


def configure(folder: Path, settings: str = "", tables: str = "") -> Path:
    path = folder / "conclave.toml"
    path.write_text(BASE.format(settings, tables))
    return path


def refusal(folder: Path, *options: str, env: dict[str, str] | None = None) -> str:
    """The one line with which a start ends."""
    done = conclave("serve", *options, cwd=folder, env=env)
    assert done.returncode == 1, done.stderr
    [line] = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert line.startswith("conclave: ")
    return line.removeprefix("conclave: ")


def foreseen(folder: Path) -> list[str]:
    """The lines with which `check-config` refuses what a start refuses."""
    done = conclave("check-config", cwd=folder)
    assert done.returncode == 1, done.stdout
    return [line.removeprefix("conclave: conclave.toml: ") for line in done.stderr.splitlines()]


Make = Callable[[Path], object]


@pytest.mark.parametrize(
    ("make", "settings", "told"),
    [
        (None, 'database_path = "away/chat.db"', "away/chat.db: there is no folder|is its disk mounted?"),
        (Path.mkdir, "", "conclave.db: is a folder, not a database"),
        (Path.touch, "", "conclave.db: is empty, not a database; restore a backup, or remove it"),
        (lambda path: path.write_text("no database"), "", "conclave.db: |file is not a database"),
        (lambda path: path.write_bytes(b"SQLite format 3\0" * 100), "", "conclave.db: "),
        (None, 'data_path = "conclave.toml"', "data_path: |is a file, not a folder"),
        (lambda path: (path.parent / "notes").mkdir(), 'data_path = "."', "data_path: |name a folder of its own"),
        (None, 'listen_address = "203.0.113.9"', 'cannot listen on 203.0.113.9 port 0: |"0.0.0.0" for all of them'),
        (
            None,
            'listen_address = "no.such.host.invalid"',
            "cannot listen on no.such.host.invalid port 0: |name an address",
        ),
        (None, 'tls_cert_path = "none"\ntls_key_path = "none"', "tls_cert_path: none: No such file or directory"),
        (None, 'tls_cert_path = "."\ntls_key_path = "."', "tls_cert_path: .: Is a directory"),
    ],
)
def test_a_start_is_refused_in_one_line(tmp_path: Path, make: Make | None, settings: str, told: str) -> None:
    configure(tmp_path, settings)
    if make:
        make(tmp_path / "conclave.db")
    line = refusal(tmp_path)
    for part in told.split("|"):
        assert part in line
    assert line in foreseen(tmp_path)


def test_a_port_in_use_is_told_with_who_uses_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        path = configure(tmp_path)
        path.write_text(path.read_text().replace("listen_port = 0", f"listen_port = {port}", 1))
        line = refusal(tmp_path)
    assert line.startswith(f"cannot listen on 127.0.0.1 port {port}: Address already in use by process ")
    assert line.endswith("): stop that process, or set another port")


@pytest.mark.parametrize(
    ("certificate", "key", "told"),
    [
        ("one.pem", "two.key", "tls_key_path: two.key: does not match one.pem: name the key"),
        (
            "one.key",
            "one.pem",
            "tls_cert_path: one.key: contains no certificate in PEM: it contains a private key",
        ),
        ("one.pem", "one.pem", "tls_key_path: one.pem: cannot be used: it contains no private key"),
        ("one.der", "one.key", "tls_cert_path: one.der: contains no certificate in PEM (it seems to be DER"),
        ("one.pem", "locked.key", "tls_key_path: locked.key: cannot be used: it is encrypted; remove its passphrase"),
        ("one.pem", "text", "tls_key_path: text: cannot be used: no private key in PEM"),
        ("one.pem", "pipe", "tls_key_path: pipe: is not a regular file: name one"),
    ],
)
def test_files_of_tls_are_named_with_what_is_wrong(
    tmp_path: Path, pairs: Path, certificate: str, key: str, told: str
) -> None:
    configure(tmp_path, f'tls_cert_path = "{pairs / certificate}"\ntls_key_path = "{pairs / key}"')
    line = refusal(tmp_path)
    assert line.replace(f"{pairs}/", "").startswith(told)
    assert line in foreseen(tmp_path)
    assert not (tmp_path / "conclave.db").exists(), "nothing was begun"


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of certificates and keys, some of which cannot be used."""
    folder = tmp_path_factory.mktemp("pairs")
    for name in ("one", "two"):
        make_certificate(folder, f"{name}.pem", f"{name}.key")
    for words in (
        ("x509", "-in", "one.pem", "-outform", "DER", "-out", "one.der"),
        ("pkey", "-in", "one.key", "-aes128", "-passout", "pass:secret", "-out", "locked.key"),
    ):
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)
    (folder / "text").write_text("nothing")
    os.mkfifo(folder / "pipe")
    return folder


def test_a_certificate_that_has_expired_is_a_warning(tmp_path: Path) -> None:
    make_certificate(tmp_path)
    (tmp_path / "ca.cnf").write_text(EXPIRED)
    (tmp_path / "index").touch()
    for words in (
        ("req", "-new", "-key", "key.pem", "-subj", "/CN=localhost", "-out", "request.pem"),
        ("ca", "-batch", "-config", "ca.cnf", "-selfsign", "-in", "request.pem", "-out", "cert.pem"),
    ):
        subprocess.run(["openssl", *words], cwd=tmp_path, check=True, capture_output=True)
    tls = 'tls_cert_path = "cert.pem"\ntls_key_path = "key.pem"\n'
    with ServerProcess(tmp_path, f'{tls}[cleanup]\nengine = "sql"\n') as server:
        warned = server.wait_for("certificate_not_valid")
        assert warned["level"] == "warning"
        assert warned["reason"] == "has expired: clients will refuse it; renew it"


def test_files_that_may_not_be_read_are_told(tmp_path: Path) -> None:
    path = configure(tmp_path)
    path.chmod(0)
    done = capless("-P", "-m", "conclave", "check-config", "conclave.toml", cwd=tmp_path)
    assert done.stderr == (
        "conclave: conclave.toml: cannot be read: Permission denied: make it readable for the user that runs this\n"
    )


@pytest.mark.parametrize("command", ["serve", "status", "check-config", "doctor", "user list", "backup backups"])
def test_a_working_directory_that_is_closed_is_told_by_every_command(tmp_path: Path, command: str) -> None:
    """As root's is to the server's user: sudo -u keeps it."""
    begin = "import os, runpy; os.chmod('.', 0); runpy.run_module('conclave', run_name='__main__')"
    try:
        done = capless("-P", "-c", begin, *command.split(), cwd=tmp_path)
    finally:
        tmp_path.chmod(0o700)
    told = "conclave.toml: cannot be looked for: the working directory: Permission denied: name the file that is meant"
    assert done.returncode == 1
    assert told in (done.stdout if command == "doctor" else done.stderr)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (Path.mkdir, "Is a directory: use the file in that folder"),
        (lambda path: path.symlink_to("gone.toml"), "No such file or directory: use a file that exists"),
        (lambda path: path.symlink_to(path.name), "Too many levels of symbolic links"),
    ],
)
def test_what_has_the_name_of_a_configuration_and_is_none_is_not_passed_over(
    tmp_path: Path, make: Callable[[Path], None], told: str
) -> None:
    """As a container engine makes a folder for a file that is not there; a server would go by the defaults."""
    make(tmp_path / "conclave.toml")
    done = conclave("serve", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, f"conclave: conclave.toml: cannot be read: {told}\n")


@pytest.mark.parametrize(
    ("mode", "told"), [(0o000, "/chat.data: Permission denied"), (0o500, ": cannot be written to")]
)
def test_a_folder_of_somebody_else_is_told(tmp_path: Path, mode: int, told: str) -> None:
    """As that of a container's volume may be: it cannot be entered, or not be written to."""
    (tmp_path / "volume").mkdir()
    (tmp_path / "conclave.toml").write_text(f'database_path = "{tmp_path}/volume/chat.db"\n')
    (tmp_path / "volume").chmod(mode)
    done = capless("-P", "-m", "conclave", "serve", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (
        1,
        f"conclave: {tmp_path}/volume{told}: the server runs as user {os.geteuid()}: let it read and write there\n",
    )


def test_a_folder_in_which_nothing_can_be_made_is_told_to_readers_too(tmp_path: Path) -> None:
    """SQLite makes the index of its log there, and says only that it cannot write."""
    path = configure(tmp_path)
    stores.prepare(tmp_path / "conclave.db")
    tmp_path.chmod(0o500)
    try:
        done = capless("-P", "-m", "conclave", "user", "list", "--config", path, cwd=tmp_path)
    finally:
        tmp_path.chmod(0o700)
    assert done.stderr == (
        f"conclave: {tmp_path}/conclave.db: cannot be opened as a database: attempt to write a readonly database"
        f" ({tmp_path}: cannot be written to; is it another user's, or its disk read-only?)\n"
    )


def test_a_database_that_may_not_be_read_is_not_taken_for_a_damaged_one(tmp_path: Path) -> None:
    path = configure(tmp_path)
    database = tmp_path / "conclave.db"
    stores.prepare(database)
    database.chmod(0)
    told = (
        f"{database}: cannot be opened as a database: unable to open database file"
        f" ({database}: cannot be read; is it another user's?)"
    )
    listed, looked = (
        capless("-P", "-m", "conclave", *command, "--config", path, cwd=tmp_path)
        for command in (("user", "list"), ("doctor", "--json"))
    )
    assert listed.stderr == f"conclave: {told}\n"
    [found] = [each for each in json.loads(looked.stdout)["findings"] if "unable to open" in each["says"]]
    assert found["says"] == f"{database}: cannot be read: {told}"
    assert found["remedy"].startswith("run this as the server's user")


@pytest.mark.parametrize(
    ("tables", "advice"),
    [("", ', or set [cleanup] engine = "sql"'), ('[archive]\nafter = "7d"', "; the archive works by Spark only")],
)
def test_without_java_the_advice_is_one_that_helps(tmp_path: Path, tables: str, advice: str) -> None:
    with ServerProcess(tmp_path, tables, env={"PATH": str(tmp_path), "JAVA_HOME": ""}) as server:
        reason = server.wait_for("cleanup_unavailable")["reason"]
    assert reason == (
        "the Spark cleanup needs Java, which is not installed: install Java 17 or 21 (Debian: apt install"
        f" openjdk-17-jre-headless){advice}"
    )


def test_two_servers_and_a_second_database_in_one_folder(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, '[cleanup]\nengine = "sql"\n'):
        assert "another server is running on this database" in refusal(tmp_path)
        other = tmp_path / "other"
        other.mkdir()
        configure(other, f'data_path = "{tmp_path}/conclave.data"')
        assert "a server on another database uses this folder" in refusal(other)


def test_the_variable_names_the_file_and_the_option_comes_first(tmp_path: Path) -> None:
    (tmp_path / "conclave.toml").write_text("colour = 1")
    (tmp_path / "named.toml").write_text("size = 1")
    (tmp_path / "option.toml").write_text("weight = 1")
    env = {"CONCLAVE_CONFIG": "named.toml"}
    assert refusal(tmp_path).startswith("conclave.toml: colour: ")
    assert refusal(tmp_path, env=env).startswith("named.toml: size: ")
    assert refusal(tmp_path, "--config", "option.toml", env=env).startswith("option.toml: weight: ")
    for words in (["check-config"], ["cleanup", "history"], ["hold", "list"], ["archive", "status"]):
        assert "named.toml: size: " in conclave(*words, cwd=tmp_path, env=env).stderr
    assert refusal(tmp_path, env={"CONCLAVE_CONFIG": "none.toml"}).endswith("use a file that exists")
