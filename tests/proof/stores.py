"""The command's answer about a store."""

import json
from pathlib import Path
from typing import Any

from conclave.config.settings import Config
from conclave.proof.findings import ProofFinding
from conclave.proof.keys import verify
from tests.support.server import conclave


def command(config: Path, folder: Path, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """Run the command with ``--json``; return its exit status, what it found, and its standard error."""
    done = conclave("verify-erasure", "--json", "--config", config, *arguments, cwd=folder)
    return done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr


def findings(told: dict[str, Any]) -> list[tuple[str, str]]:
    return [(part["name"], each["kind"]) for part in told["parts"] for each in part["findings"]]


def examined(config: Config) -> list[ProofFinding]:
    """Examine the keys in this process; return what was found."""

    def waiting() -> None:
        raise AssertionError("no run is under way")

    return [each for part in verify(config, waiting) for each in part.findings]
