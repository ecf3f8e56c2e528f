"""The jars of Delta Lake: nothing of them runs before they were compared with their hashes, however they came here."""

import struct
import zipfile
from pathlib import Path

import pytest

from spark import delta_jars
from spark.requirements import RequirementError, find_jars

_PROVIDER = "org.apache.spark.sql.SparkSessionExtensionsProvider"
"""What Spark looks for in every jar as soon as a session begins, and runs."""


def class_that_writes(path: Path) -> bytes:
    """Return a class of Java, ``Planted``, that makes a file when it is initialised."""

    def text(value: str) -> bytes:
        return struct.pack(">BH", 1, len(value.encode())) + value.encode()

    code = {
        7: bytes([0x2A, 0xB7, 0, 10, 0xB1]),  # the constructor: that of Object
        19: bytes([0xBB, 0, 12, 0x59, 0x12, 17, 0xB7, 0, 15, 0x57, 0xB1]),  # new FileOutputStream(path)
    }
    pool = [
        *(text("Planted"), struct.pack(">BH", 7, 1), text("java/lang/Object"), struct.pack(">BH", 7, 3)),
        *(text(_PROVIDER.replace(".", "/")), struct.pack(">BH", 7, 5), text("<init>"), text("()V")),
        *(struct.pack(">BHH", 12, 7, 8), struct.pack(">BHH", 10, 4, 9)),
        *(text("java/io/FileOutputStream"), struct.pack(">BH", 7, 11), text("(Ljava/lang/String;)V")),
        *(struct.pack(">BHH", 12, 7, 13), struct.pack(">BHH", 10, 12, 14)),
        *(text(str(path)), struct.pack(">BH", 8, 16), text("Code"), text("<clinit>")),
    ]
    methods = b"".join(
        struct.pack(">HHHHHIHHI", 1 if name == 7 else 8, name, 8, 1, 18, 12 + len(body), 3, 1, len(body))
        + body
        + bytes(4)
        for name, body in code.items()
    )
    head = struct.pack(">IHHH", 0xCAFEBABE, 0, 50, 1 + len(pool)) + b"".join(pool)
    return head + struct.pack(">HHHHHHH", 0x21, 2, 4, 1, 6, 0, len(code)) + methods + bytes(2)


def plant(repository: Path, ran: Path) -> None:
    """Make a repository of Maven with all the jars, each of which makes the file ``ran`` as soon as a session loads it.

    The first of them asks for the others.
    """
    first = delta_jars.COORDINATE.replace(":", "_", 1).replace(":", "-")
    modules = []
    for name in delta_jars.listed():
        group, _, rest = name.removesuffix(".jar").partition("_")
        module, _, version = rest.rpartition("-")
        modules.append((name.removesuffix(".jar") != first, group, module, version))
    modules.sort()
    for is_other, group, module, version in modules:
        folder = repository / group.replace(".", "/") / module / version
        folder.mkdir(parents=True)
        identity = "<groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>"
        needed = "".join(f"<dependency>{identity.format(*each)}</dependency>" for _, *each in modules[1:])
        (folder / f"{module}-{version}.pom").write_text(
            f"<project><modelVersion>4.0.0</modelVersion>{identity.format(group, module, version)}"
            f"<dependencies>{'' if is_other else needed}</dependencies></project>"
        )
        with zipfile.ZipFile(folder / f"{module}-{version}.jar", "w") as jar:
            jar.writestr("Planted.class", class_that_writes(ran))
            jar.writestr(f"META-INF/services/{_PROVIDER}", "Planted")


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the jars lie, as in an installation of its own: one jar."""
    folder = tmp_path / "delta-jars"
    folder.mkdir(mode=0o755)
    (folder / "a.jar").write_bytes(b"whole")
    monkeypatch.setattr(delta_jars, "TARGET", folder)
    known = {"a.jar": delta_jars.digest(folder / "a.jar")}
    monkeypatch.setattr(delta_jars, "listed", lambda: known)
    return folder


def test_nothing_of_a_planted_repository_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's own repository is not asked, and what another one delivers is compared before anything loads it."""
    home, mirror = tmp_path / "home", tmp_path / "mirror"
    plant(home / ".m2" / "repository", tmp_path / "ran-from-home")
    plant(mirror, tmp_path / "ran-from-mirror")
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-Duser.home={home}")
    monkeypatch.setenv("DEFAULT_ARTIFACT_REPOSITORY", f"{mirror.as_uri()}/")
    before = delta_jars.fault()
    with pytest.raises(delta_jars.FetchError, match=r"its SHA-256 is \w+, but .* has"):
        delta_jars.fetch()
    assert delta_jars.fault() == before, "what was there is untouched"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "mirror"], "no class was loaded"
    (tmp_path / "fetched").mkdir()
    jars = delta_jars.resolve(tmp_path / "fetched")
    assert [jar.name for jar in jars] == sorted(delta_jars.listed())
    assert {jar.read_bytes() for jar in jars} == {jar.read_bytes() for jar in mirror.rglob("*.jar")}


def test_a_resolution_that_fails_says_why_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(delta_jars.FetchError, match=r"could not be resolved: .*\w") as told:
        delta_jars.resolve(tmp_path)
    assert "\n" not in str(told.value)


def test_a_jar_that_is_as_listed_may_be_loaded(target: Path) -> None:
    assert delta_jars.fault() == ""
    assert find_jars() == [target / "a.jar"]


def test_a_jar_that_was_changed_after_it_was_fetched_is_not_loaded(target: Path) -> None:
    (target / "a.jar").write_bytes(b"another")
    with pytest.raises(RequirementError, match=r"a\.jar has a wrong SHA-256.*fetch-jars"):
        find_jars()


@pytest.mark.parametrize("name", [".", "a.jar"])
def test_a_jar_that_others_could_change_before_it_is_loaded_is_refused(target: Path, name: str) -> None:
    (target / name).chmod(0o775)
    assert "can be changed by others" in delta_jars.fault()


def test_a_link_and_a_missing_jar_are_refused(target: Path) -> None:
    (target / "a.jar").rename(target / "b.jar")
    assert delta_jars.fault() == f"{target / 'a.jar'} is missing"
    (target / "a.jar").symlink_to(target / "b.jar")
    assert "is a link" in delta_jars.fault()
