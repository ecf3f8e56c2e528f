"""A cluster without a secret is refused before anything is started."""

from pathlib import Path

import pytest

from conclave.config.settings import Config
from spark.requirements import SECRET_VARIABLE, RequirementError, require_secret
from spark.session import _protection
from tests.support.server import conclave

MASTER = "spark://10.0.0.5:7077"
SECRET = "spark.authenticate.secret        0123456789abcdef\n"
ON = "spark.authenticate               true\n"


@pytest.fixture
def defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file with the settings of Spark, which is still to be written."""
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)
    return tmp_path / "spark-defaults.conf"


def write(path: Path, text: str, mode: int = 0o600) -> None:
    path.write_text(text)
    path.chmod(mode)


@pytest.mark.parametrize(
    ("text", "mode", "told"),
    [
        (None, 0, "must have spark.authenticate true, and a secret"),
        ("", 0o600, "must have spark.authenticate true, and a secret"),
        (SECRET, 0o600, "must have spark.authenticate true, and a secret"),
        (f"{SECRET}spark.authenticate false", 0o600, "must have spark.authenticate true, and a secret"),
        (f"#{ON}{SECRET}", 0o600, "must have spark.authenticate true, and a secret"),
        (ON, 0o600, "Spark has no secret"),
        (f"{ON}#{SECRET}", 0o600, "Spark has no secret"),
        (f"{ON}{SECRET}", 0o604, r"others can read the secret \(mode 0604\)"),
    ],
)
def test_a_cluster_without_a_secret_of_its_own_is_refused(
    defaults: Path, text: str | None, mode: int, told: str
) -> None:
    if text is not None:
        write(defaults, text, mode)
    with pytest.raises(RequirementError, match=told):
        require_secret(MASTER)


@pytest.mark.parametrize("text", [f"{ON}{SECRET}", "  spark.authenticate=true\nspark.authenticate.secret = x\n"])
def test_a_cluster_with_a_secret_is_taken(defaults: Path, text: str) -> None:
    write(defaults, text)
    require_secret(MASTER)
    require_secret(MASTER, {"spark.authenticate": "true", "spark.authenticate.secret": "x"})


def test_a_file_of_the_secret_alone_has_to_be_there_and_private(defaults: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    write(defaults, f"{ON}spark.authenticate.secret.file {secret}", 0o644)
    with pytest.raises(RequirementError, match="cannot be read: No such file"):
        require_secret(MASTER)
    write(secret, "0123456789abcdef", 0o644)
    with pytest.raises(RequirementError, match="others can read the secret"):
        require_secret(MASTER)
    secret.chmod(0o600)
    require_secret(MASTER)


def test_settings_of_spark_submit_are_looked_at_too() -> None:
    with pytest.raises(RequirementError, match=r"the settings of spark-submit must have spark\.authenticate true"):
        require_secret(MASTER, {"spark.authenticate": "false", "spark.authenticate.secret": "x"})


def test_local_mode_needs_no_secret_and_is_always_protected() -> None:
    require_secret(Config().spark.master)
    assert _protection("local[2]")["spark.authenticate"] == "true"
    assert _protection("local[2]")["spark.network.crypto.enabled"] == "true"
    assert _protection(MASTER).items() <= _protection("local[2]").items()


def test_check_config_doctor_and_a_run_refuse_such_a_cluster(defaults: Path, tmp_path: Path) -> None:
    config = tmp_path / "conclave.toml"
    config.write_text(f'[spark]\nmaster = "{MASTER}"\n')
    checked = conclave("check-config", config, cwd=tmp_path)
    assert checked.returncode == 1
    assert f"spark.master: {MASTER}: {defaults} (SPARK_CONF_DIR) must have spark.authenticate true" in checked.stderr
    looked = conclave("doctor", "--config", config, cwd=tmp_path)
    assert looked.returncode == 1
    assert "wrong spark: spark.master" in " ".join(looked.stdout.split())
    write(defaults, f"{ON}{SECRET}")
    assert conclave("check-config", config, cwd=tmp_path).returncode == 0
