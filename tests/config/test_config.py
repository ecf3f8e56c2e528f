"""Reading the configuration."""

from collections.abc import Callable
from pathlib import Path

import pytest

from conclave.config.archive import ArchiveConfig
from conclave.config.limits import LimitsConfig
from conclave.config.load import ConfigError, load_config, parse_config
from conclave.config.settings import Config, setting_names


def faults_of(text: str) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        parse_config(text, "conclave.toml")
    lines = str(refused.value).splitlines()
    assert all(line.startswith("conclave.toml: ") for line in lines)
    return [line.removeprefix("conclave.toml: ") for line in lines]


def test_an_empty_file_gives_the_defaults() -> None:
    assert parse_config("", "conclave.toml") == Config()
    assert (Config().message_retention, Config().cleanup_interval, Config().port) == (-1, 3600, 8080)
    assert Config().listen_address == "127.0.0.1", "nobody is served from elsewhere unawares"


def test_settings_are_read() -> None:
    config = parse_config(
        'message_retention = "30d"\nlisten_port = 0\ncleanup_interval = "10s"\n[cleanup]\nengine = "sql"', "x"
    )
    assert (config.message_retention, config.port, config.cleanup_interval) == (2_592_000, 0, 10)
    assert config.cleanup.engine == "sql"


NO_ORIGINS = (
    *("*", "null", "", "chat.example.org", "https://", "https://*.example.org", "https://chat.example.org/"),
    *("https://chat.example.org/app", "https://chat.example.org?a", "https://ann@chat.example.org", "file:///a"),
    *("https://chat..example.org", "https://chat.example.org:", "https://chat.example.org:65536", "https://a b"),
    *("http://[::1", "http://[1:2]", "http://::1"),
)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("https://chat.example.org", "https://chat.example.org"),
        ("HTTPS://Chat.Example.ORG:443", "https://chat.example.org"),
        ("http://localhost:80", "http://localhost"),
        ("http://localhost:443", "http://localhost:443"),
        ("http://127.0.0.1:3000", "http://127.0.0.1:3000"),
        ("http://[0:0::1]:3000", "http://[::1]:3000"),
        ("https://m\u00fcnchen.example", "https://xn--mnchen-3ya.example"),
        ("tauri://localhost", "tauri://localhost"),
    ],
)
def test_an_origin_is_read_as_browsers_write_it(written: str, read: str) -> None:
    assert parse_config(f'web.allowed_origins = ["{written}"]', "x").web.allowed_origins == (read,)


def test_trusted_proxies_are_addresses_and_networks_of_both_kinds() -> None:
    config = parse_config('limits.trusted_proxies = ["127.0.0.1", "10.0.0.0/8", "::1", "fd00::/8"]', "x")
    assert config.limits == LimitsConfig(trusted_proxies=("127.0.0.1", "10.0.0.0/8", "::1", "fd00::/8"))
    assert list(map(str, config.limits.trusted)) == ["127.0.0.1/32", "10.0.0.0/8", "::1/128", "fd00::/8"]


@pytest.mark.parametrize(("text", "size"), [("64m", 64), ("1000m", 1000), ("2g", 2048), ("96MiB", 96), ("1GiB", 1024)])
def test_the_memory_for_responses_is_in_megabytes_or_gigabytes(text: str, size: int) -> None:
    assert parse_config(f'limits.response_memory = "{text}"', "x").limits.response_bytes == size * 1024**2
    assert parse_config('spark.driver_memory = "2GiB"', "x").spark.driver_memory == "2g", "as Java takes it"


def test_a_cluster_may_be_the_master() -> None:
    assert parse_config('spark.master = "spark://10.0.0.7:7077"', "x").spark.master == "spark://10.0.0.7:7077"


def test_the_archive_lies_in_the_data_directory_or_where_it_is_said(tmp_path: Path) -> None:
    assert Config(data_path=f"{tmp_path}/data").archive_path == tmp_path / "data" / "archive"
    config = parse_config('archive = { after = "7d", path = "elsewhere" }', "x")
    assert config.archive == ArchiveConfig(after=7 * 86_400, path=str(Path("elsewhere").absolute()))
    assert Config.from_json(config.to_json()).archive_path == config.archive_path


def test_the_port_follows_tls() -> None:
    assert parse_config('tls_cert_path = "c"\ntls_key_path = "k"', "x").port == 8443


def test_the_data_directory_lies_beside_the_database(tmp_path: Path) -> None:
    assert Config(database_path=f"{tmp_path}/chat.db").data == tmp_path / "chat.data"
    assert Config(database_path="chat.db", data_path=f"{tmp_path}/elsewhere").data == tmp_path / "elsewhere"


def test_a_path_stays_the_same_whatever_leads_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "chat.db").touch()
    (tmp_path / "folder").symlink_to("real")
    (tmp_path / "link.db").symlink_to("folder/chat.db")
    monkeypatch.chdir(tmp_path)
    config = parse_config('database_path = "link.db"\narchive = { path = "folder/archive" }', "x")
    monkeypatch.chdir("/")
    assert config.database == tmp_path / "real" / "chat.db"
    assert config.data == tmp_path / "real" / "chat.data"
    assert config.archive_path == tmp_path / "real" / "archive"
    assert parse_config(f'data_path = "{tmp_path}/folder/data"', "x").data == tmp_path / "real" / "data"


def test_without_a_working_directory_the_start_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(ConfigError, match="no working directory"):
        load_config()


def test_bare_months_are_advised_against(tmp_path: Path) -> None:
    advice: list[tuple[str, str]] = []
    text = 'message_retention = "2m"\ncleanup_interval = "30min"\n[archive]\nafter = "1mo"\nmargin = "3m"\n'
    config = parse_config(text, "x", lambda *advised: advice.append(advised))
    assert (config.message_retention, config.cleanup_interval) == (5_184_000, 1800)
    assert [name for name, _ in advice] == ["message_retention", "archive.margin"]
    assert advice[0][1] == '"2m" means months of 30 days; write it as "2mo", or minutes as "2min"'


@pytest.mark.parametrize(("text", "size"), [("0", 0), ("1m", 1024**2), ("16MiB", 16 * 1024**2), ("2g", 2 * 1024**3)])
def test_a_size_is_megabytes_or_gigabytes(text: str, size: int) -> None:
    assert parse_config(f'cleanup.disk_reserve = "{text}"', "x").cleanup.disk_reserve == size


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('message_retention = ""', "message_retention: '' is not a duration"),
        ('message_retention = "90m"', "message_retention: '90m' may mean minutes or months: write \"90min\""),
        ('message_retention = "30"', "message_retention: '30' is not a duration"),
        ('message_retention = "-5d"', "message_retention: '-5d' is not a duration"),
        ('cleanup_interval = "5x"', "cleanup_interval: '5x' is not a duration"),
        ('cleanup_interval = "abcd"', "cleanup_interval: 'abcd' is not a duration"),
        ('cleanup_interval = "0"', "cleanup_interval: '0' is not a duration"),
        ("cleanup_interval = 60", 'cleanup_interval: must be a duration in quotes, as in "30d"'),
        ('cleanup_interval = "5M"', "cleanup_interval: '5M' is not a duration"),
        ('cleanup.disk_reserve = "64"', "cleanup.disk_reserve: must be a size"),
        ('cleanup.disk_reserve = "0m"', "cleanup.disk_reserve: must be a size"),
        ('cleanup.disk_reserve = "64MB"', "cleanup.disk_reserve: must be a size"),
        ("cleanup.disk_reserve = 64", 'cleanup.disk_reserve: must be a size in quotes, as in "64m"'),
        ('data_path = "a\\u0000b"', "data_path: must not contain a zero byte"),
        ('database_path = "chat.data"', "data_path: is the database's own path"),
        ('listen_address = ""', "listen_address: must not be empty"),
        ('listen_address = "chat..example"', "listen_address: is neither an address nor a host name"),
        (f'listen_address = "{"x" * 64}"', "listen_address: is neither an address nor a host name"),
        ('admin.listen_address = "\u00ad.example"', "admin.listen_address: is neither an address nor a host name"),
        ('archive.after = "0"', 'archive.after: must be a duration or "-1"'),
        ('archive.after = "5x"', "archive.after: '5x' is not a duration"),
        ('archive.margin = "-1"', 'archive.margin: must be a duration or "0"'),
        ('archive.reclaim_interval = "-1"', 'archive.reclaim_interval: must be a duration or "0"'),
        ('archive.reclaim_after = "-1"', 'archive.reclaim_after: must be a duration or "0"'),
        ('archive.path = "s3://bucket/archive"', "archive.path: must be a local or shared folder"),
        ('archive.path = "file:/srv/archive"', "archive.path: must be a local or shared folder"),
        ('archive.path = ""', "archive.path: must not be empty"),
        ('archive.path = "."', "archive.path: must be a separate folder"),
        ('vault.path = "/srv/v"\nvault.copies = ["/mnt/v", "/srv/v"]', "vault.copies: contains the vault itself"),
        ('vault.path = "conclave.data"', "vault.path: must be a separate folder"),
        ('vault.path = "."', "vault.path: must be a separate folder"),
        ('archive.path = "conclave.data"', "archive.path: must be a separate folder"),
        ('archive.path = "conclave.data/work/archive"', "archive.path: must be a separate folder"),
        ('archive.after = "7d"\n[cleanup]\nengine = "sql"', "archive.after: messages move by Spark only"),
        ('spark.master = "yarn"', 'spark.master: must be "local[N]"'),
        ('spark.master = "spark://host"', 'spark.master: must be "local[N]"'),
        ("listen_port = 65536", "listen_port: must be between 0 and 65535"),
        ("listen_port = true", "listen_port: must be an integer"),
        ('listen_port = "8080"', "listen_port: must be an integer"),
        ("token_ttl_seconds = 0", "token_ttl_seconds: must be between 1 and"),
        ("registration_enabled = 1", "registration_enabled: must be true or false"),
        ('registration_token = ""', "registration_token: may contain only"),
        ('registration_token = "a b"', "registration_token: may contain only"),
        ('auth_header = "X Y"', "auth_header: is not the name of a header"),
        ('database_path = ""', "database_path: must not be empty"),
        ('tls_cert_path = "cert.pem"', "tls_cert_path and tls_key_path: set both for TLS, or neither"),
        ("listen_prot = 1", "listen_prot: unknown setting; did you mean listen_port?"),
        ('[cleanup]\nengin = "sql"', "cleanup.engin: unknown setting; did you mean engine?"),
        ('[cleanup]\nengine = "duckdb"', 'cleanup.engine: must be "spark" or "sql"'),
        ("limits.login_failures = 0", "limits.login_failures: must be between 1 and 10000"),
        ("limits.login_failures = 1.5", "limits.login_failures: must be an integer"),
        ("limits.login_failures_per_address = 10001", "limits.login_failures_per_address: must be between 1 and"),
        ("limits.registrations_per_address = 0", "limits.registrations_per_address: must be between 1 and"),
        ("limits.login_window = 300", 'limits.login_window: must be a duration in quotes, as in "30d"'),
        ('limits.login_window = "0s"', "limits.login_window: '0s' is not a duration"),
        ('limits.response_memory = "63m"', 'limits.response_memory: must be a size of at least "64m"'),
        ("limits.response_memory = 256", 'limits.response_memory: must be a size in quotes, as in "1g"'),
        ('limits.trusted_proxies = "127.0.0.1"', "limits.trusted_proxies: must be a list of strings"),
        ("limits.trusted_proxies = [127]", "limits.trusted_proxies: must be a list of strings"),
        ('limits.trusted_proxies = ["::1", "proxy"]', "limits.trusted_proxies: 'proxy': not an address"),
        ('limits.trusted_proxies = ["10.0.0.1/8", "x"]', "limits.trusted_proxies: '10.0.0.1/8', 'x': not an address"),
        ('limits.trusted_proxies = ["0.0.0.0/0"]', "limits.trusted_proxies: these are at least half of the Internet"),
        ('limits.trusted_proxies = ["::/0"]', "limits.trusted_proxies: these are at least half of the Internet"),
        ('limits.trusted_proxies = ["0.0.0.0/1", "128.0.0.0/1"]', "limits.trusted_proxies: these are at least half of"),
        ('web.allowed_origins = "https://chat.example.org"', "web.allowed_origins: must be a list of strings"),
        ("web.allowed_origins = [1]", "web.allowed_origins: must be a list of strings"),
        *(
            (f'web.allowed_origins = ["https://a.example", "{each}"]', f"web.allowed_origins: '{each}': not an origin")
            for each in NO_ORIGINS
        ),
        ('cleanup = "sql"', "cleanup: "),
        ("[nothing]", "nothing: unknown setting"),
        ("= 1", "is not TOML"),
        ("a = " + "[" * 5000, "is not TOML"),
        # What is in the wrong place.
        (
            '[cleanup]\ncleanup_interval = "1h"',
            "cleanup.cleanup_interval: belongs at the top of the file, above the first [table]",
        ),
        (
            '[admin]\nmessage_retention = "1d"',
            "admin.message_retention: belongs at the top of the file, above the first [table]",
        ),
        ("login_failures = 3", "login_failures: belongs below [limits]"),
        ('[limits]\nengine = "sql"', "limits.engine: belongs below [cleanup]"),
        ('[retention]\nmax_lifetime = "1d"', "retention.max_lifetime: belongs below [retention.default_policy]"),
        ('level = "info"', "level: belongs below [log]"),
        # What is mistyped.
        ("listen-port = 1", "listen-port: unknown setting; did you mean listen_port?"),
        ("Listen_Port = 1", "Listen_Port: unknown setting; did you mean listen_port?"),
        ("port = 1", "port: unknown setting; did you mean listen_port?"),
        ("[admin]\nport = 1", "admin.port: unknown setting; did you mean listen_port?"),
        ('[logs]\nlevel = "info"', "logs: unknown setting; did you mean log?"),
        ("[retention.default_polcy]", "retention.default_polcy: unknown setting; did you mean default_policy?"),
        ("login_failurs = 3", "login_failurs: unknown setting; did you mean login_failures, below [limits]?"),
        ("zzz = 1", "zzz: unknown setting; docs/configuration.md lists all"),
        # What has the wrong type is told with an example.
        ('listen_port = "80"', "listen_port: must be an integer, as in listen_port = 8080"),
        ("listen_address = 1", 'listen_address: must be a string, as in listen_address = "127.0.0.1"'),
        ("database_path = 1", 'database_path: must be a string, as in database_path = "conclave.db"'),
        ("registration_enabled = 1", "registration_enabled: must be true or false, as in registration_enabled = true"),
        ('token_ttl_seconds = "30d"', "token_ttl_seconds: must be an integer, as in token_ttl_seconds = 2592000"),
        ("[spark]\nmaster = 2", 'spark.master: must be a string, as in master = "local[2]"'),
        (
            'limits.trusted_proxies = "::1"',
            "limits.trusted_proxies: must be a list of strings, as in trusted_proxies =",
        ),
        ('archive = "on"', "archive: must be a table, as in [archive]"),
        ("[[cleanup]]", "cleanup: must be a table, as in [cleanup]"),
        ('retention.limits.max_lifetime = "1d"', "retention.limits.max_lifetime: must be a table, as in [retention."),
        ("retention.purge_jobs = 5", "retention.purge_jobs: must be a list of tables, as in [[retention.purge_jobs]]"),
        ('log.level = "INFO"', 'log.level: must be "debug", "info", "warning" or "error"'),
        ('log.format = "text"', 'log.format: must be "auto", "console" or "json"'),
        ('log.requests = "some"', 'log.requests: must be "auto", "all", "errors" or "none"'),
    ],
)
def test_a_fault_is_one_line_that_names_the_setting(text: str, fault: str) -> None:
    [line] = faults_of(text)
    assert line.startswith(fault)


@pytest.mark.parametrize("name", [name for name in setting_names() if name != "admin.token"])
def test_the_hint_of_a_wrong_type_shows_a_value_that_is_right(name: str) -> None:
    """An operators' token has no example: somebody would take it."""
    fault = faults_of(f"{name} = 1979-05-27")[0]
    assert fault.startswith(f"{name}: ")
    _, _, shown = fault.rpartition(", as in ")
    assert shown, fault
    if "must be a table" in fault or "must be a list of tables" in fault:
        assert name in shown
        return
    needs = {
        "tls_cert_path": 'tls_key_path = "k"',
        "tls_key_path": 'tls_cert_path = "c"',
    }
    other = needs.get(name, "")
    parse_config(f"{other}\n{name} = {shown.rpartition(' = ')[2]}", "x")


@pytest.mark.parametrize(
    ("text", "place", "remedy"),
    [
        ("\nmessage_retention = 30d\n", "at line 2", 'a duration or a size needs quotes, as in "30d"'),
        ("registration_enabled = True\n", "at line 1", "write true or false in lower case; text needs quotes"),
        ("registration_enabled = yes\n", "at line 1", "write true or false in lower case; text needs quotes"),
        ("listen_port = 1\nlisten_port = 2\n", "at line 2", "a setting or table occurs twice: remove one"),
        ("[cleanup]\n[spark]\n[cleanup]\n", "at line 3", "a setting or table occurs twice: remove one"),
        ("database_path = conclave.db\n", "at line 1", 'text needs quotes, as in NAME = "text"'),
        ("[cleanup\n", "at line 1", 'a line is NAME = VALUE or [table], and text needs quotes, as in NAME = "text"'),
        ("listen_port 8080\n", "at line 1", "a line is NAME = VALUE or [table]"),
        ('listen_address = "127.0.0.1\n', "at line 1", 'text needs quotes, as in NAME = "text"'),
    ],
)
def test_what_is_not_toml_is_told_with_its_line_and_what_to_do(text: str, place: str, remedy: str) -> None:
    [line] = faults_of(text)
    assert line.startswith("is not TOML: ")
    assert f"({place}" in line
    assert remedy in line


def test_a_mark_of_the_order_of_bytes_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_bytes(b"\xef\xbb\xbflisten_port = 1234\n")
    assert load_config(tmp_path / "c.toml").port == 1234


@pytest.mark.parametrize(
    ("make", "fault"),
    [
        (lambda _: None, "No such file or directory: use a file that exists"),
        (Path.mkdir, "Is a directory: use the file in that folder"),
        (
            lambda path: path.write_bytes(b"a = 1\nb = '\xe4'"),
            "it is not UTF-8, at byte 11, in line 2: save it as UTF-8",
        ),
        (lambda path: path.symlink_to(path), "Too many levels of symbolic links"),
    ],
)
def test_a_file_that_cannot_be_read_is_told_in_one_line(
    tmp_path: Path, make: Callable[[Path], object], fault: str
) -> None:
    path = tmp_path / "conclave.toml"
    make(path)
    with pytest.raises(ConfigError) as refused:
        load_config(path)
    assert str(refused.value) == f"{path}: cannot be read: {fault}"


def test_all_faults_are_reported_at_once() -> None:
    assert len(faults_of('listen_port = -1\nmessage_retention = "x"\ncolour = 1\n[spark]\nmaster = "yarn"')) == 4


def test_a_named_file_has_to_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path / "none.toml")


def test_the_file_in_the_working_directory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_config() == Config()
    (tmp_path / "conclave.toml").write_text("listen_port = 1234")
    assert load_config().port == 1234


def test_a_config_survives_the_way_to_the_worker(tmp_path: Path) -> None:
    config = Config(
        database_path=f"{tmp_path}/chat.db",
        data_path=f"{tmp_path}/data",
        message_retention=0,
        limits=LimitsConfig(trusted_proxies=("127.0.0.1", "fd00::/8"), login_failures=3),
    )
    assert Config.from_json(config.to_json()) == config


def test_the_data_directory_of_a_linked_database_is_beside_the_database_itself(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "chat.db").symlink_to(tmp_path / "disk" / "chat.db")
    text = f'database_path = "{tmp_path}/chat.db"'
    assert parse_config(text, "c").data == tmp_path / "disk" / "chat.data"
