"""The recipe of the image: checked line by line, its commands tried here. test_container.py builds it and runs it."""

import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from conclave.config.load import load_config
from tests.support.server import ServerProcess, conclave

ROOT = Path(__file__).resolve().parents[2]
OCI = ROOT / "deploy" / "oci"


def steps() -> list[tuple[str, str]]:
    """Return the instructions of the recipe and their arguments; lines that go on are one."""
    text = re.sub(r"^#.*\n", "", (OCI / "Containerfile").read_text(), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return [(name, " ".join(rest.split())) for name, _, rest in (line.partition(" ") for line in lines if line)]


def of(instruction: str) -> list[str]:
    return [rest for name, rest in steps() if name == instruction]


def final() -> list[tuple[str, str]]:
    """Return the instructions of the last stage."""
    found = steps()
    return found[max(number for number, (name, _) in enumerate(found) if name == "FROM") :]


def test_the_base_has_a_version() -> None:
    assert of("ARG") == ["BASE=docker.io/library/debian:12-slim"]
    assert of("FROM") == ["${BASE} AS build", "${BASE}"]


def test_nothing_is_fetched_but_by_packages() -> None:
    assert of("ADD") == []
    commands = " && ".join(of("RUN"))
    assert not re.search(r"\b(curl|wget|git)\b|https?://", commands)
    installs = re.findall(r"pip install ([^&]+)", commands)
    assert len(installs) == 3
    assert all("--require-hashes" in each or "--no-deps" in each for each in installs)


def test_the_last_stage_has_no_compiler_and_is_not_root() -> None:
    run = " && ".join(rest for name, rest in final() if name == "RUN")
    [packages] = re.findall(r"apt-get install --yes --no-install-recommends ([^&]+)", run)
    assert packages.split() == ["python3", "openjdk-17-jre-headless"]
    built_with = set(re.findall(r"^([a-z-]+)==", (ROOT / "requirements/build.txt").read_text(), re.MULTILINE))
    needed = set(re.findall(r"^([a-z-]+)==", (ROOT / "requirements/runtime.txt").read_text(), re.MULTILINE))
    removed = of("RUN")[-2].partition("pip uninstall --yes ")[2].split()
    assert {*removed} == {*(built_with - needed), "pip"}
    assert removed[-1] == "pip", "it removes the others"
    names = [name for name, _ in final()]
    assert [rest for name, rest in final() if name == "USER"] == ["10001:10001"]
    assert names.index("USER") < names.index("ENTRYPOINT")
    assert names.count("HEALTHCHECK") == 1


def ignored(path: str) -> bool:
    """Whether a file stays out of the build: the last rule that fits it, or a folder above it, decides."""
    found = False
    for rule in (ROOT / ".containerignore").read_text().splitlines():
        pattern = rule.removeprefix("!").removeprefix("**/")
        parts = path.split("/")
        above = ["/".join(parts[: number + 1]) for number in range(len(parts))]
        names = parts if "**/" in rule else above
        if rule and not rule.startswith("#") and any(fnmatch.fnmatchcase(name, pattern) for name in names):
            found = not rule.startswith("!")
    return found


def tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("needs the files of git")
    return listed.stdout.splitlines()


def test_what_is_copied_is_there_and_nothing_else_gets_into_a_layer() -> None:
    words = [rest.split() for rest in of("COPY") if "--from" not in rest]
    copied = [source for each in words for source in each[:-1] if not source.startswith("--")]
    assert copied
    assert [source for source in copied if not (ROOT / source).exists()] == []
    within = [path for path in tracked() if not ignored(path)]
    assert {path for path in within if not any(path == one or path.startswith(f"{one}/") for one in copied)} == set()
    for source in copied:
        assert any(path == source or path.startswith(f"{source}/") for path in within), source
    for path in (
        "conclave.db",
        "conclave.toml",
        "conclave.data/archive/x",
        ".git/config",
        "conclave/__pycache__/x.pyc",
    ):
        assert ignored(path), path
    for_docker = (OCI / "Containerfile.dockerignore").read_text().splitlines()[1:]
    assert for_docker == (ROOT / ".containerignore").read_text().splitlines()[1:]


def test_what_is_installed_has_every_file_that_the_server_reads(tmp_path: Path) -> None:
    """The image has the package, not the sources."""
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, source)
    for name in ("conclave", "spark"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    build = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path), "."]
    subprocess.run([sys.executable, *build], cwd=source, check=True, capture_output=True)
    [wheel] = tmp_path.glob("*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    wanted = {path for path in tracked() if path.startswith(("conclave/", "spark/")) and (ROOT / path).is_file()}
    assert wanted - packed == set()


def test_the_settings_of_the_image_are_valid_and_lie_in_its_volumes(tmp_path: Path) -> None:
    config = load_config(OCI / "config.toml", lambda *_: None)
    [volumes] = [json.loads(rest) for rest in of("VOLUME")]
    text = (OCI / "config.toml").read_text()
    for volume in sorted(volumes, key=len, reverse=True):  # one path begins with the other
        (tmp_path / volume[1:]).mkdir(parents=True)
        text = text.replace(f'"{volume}', f'"{tmp_path}{volume}')
    (tmp_path / "config.toml").write_text(text)
    checked = conclave("check-config", tmp_path / "config.toml", cwd=tmp_path)
    assert checked.returncode == 0, checked.stderr
    assert [str(config.database.parent), str(config.vault_path)] == volumes
    assert of("EXPOSE") == [str(config.port)]
    assert (config.admin.listen_address, config.admin.listen_port) == ("127.0.0.1", 9090)


def test_the_image_starts_the_server() -> None:
    [entry], [arguments] = of("ENTRYPOINT"), of("CMD")
    assert json.loads(entry) + json.loads(arguments) == ["conclave", "serve"]
    [environment] = of("ENV")
    assert "CONCLAVE_CONFIG=/etc/conclave/config.toml" in environment.split()


def test_the_health_check_tells_a_server_that_serves(tmp_path: Path) -> None:
    [rest] = of("HEALTHCHECK")
    python, *arguments = json.loads(rest.partition("CMD ")[2])
    assert python == "python"
    with ServerProcess(tmp_path, '[cleanup]\nengine = "sql"\ndisk_reserve = "0"\n') as server:
        url = server.wait_for("listening")["admin_url"]
        command = [sys.executable, *(word.replace("http://127.0.0.1:9090", url) for word in arguments)]
        assert command[-1].count(url) == 1
        for environment in (os.environ, os.environ | {"http_proxy": "http://127.0.0.1:1", "no_proxy": ""}):
            assert subprocess.run(command, env=environment).returncode == 0
        server.stop()
        assert subprocess.run(command, capture_output=True).returncode != 0


def test_the_composition_confines_it() -> None:
    [service] = yaml.safe_load((OCI / "compose.yaml").read_text())["services"].values()
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert (OCI / service["build"]["context"] / service["build"]["dockerfile"]).resolve() == OCI / "Containerfile"
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    mounted = [volume.split(":")[1] for volume in service["volumes"]]
    [volumes] = [json.loads(rest) for rest in of("VOLUME")]
    assert set(mounted) == {"/etc/conclave/config.toml", *volumes}
