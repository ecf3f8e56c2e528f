"""Refuses a cluster to which anyone could give work: one without authentication, or without a secret."""

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from spark.java_check import spark_home

PAGE = "docs/operations/cluster.md"

SECRET_VARIABLE = "_SPARK_AUTH_SECRET"  # noqa: S105 - the name that Spark gives it
"""The variable from which Spark takes the secret too, as executors do."""

_SECRET, _SECRET_FILE = "spark.authenticate.secret", "spark.authenticate.secret.file"
_OTHERS = 0o007

_LINE = re.compile(r"\s*([^\s#!=:][^\s=:]*)\s*[\s=:]\s*(.*?)\s*")
"""A line of a file of properties, as Spark reads it: name, then value."""


class ClusterError(Exception):
    """A cluster is configured on which anyone could give Spark work. The message says what to do."""


def is_cluster(master: str) -> bool:
    """Return whether a master is one of Spark's own, to which a secret has to be shown."""
    return master.startswith("spark://")


def require_secret(master: str, settings: Mapping[str, str] | None = None) -> None:
    """Raise ClusterError if ``master`` is that of a cluster without a secret, or with one that others can read.

    ``settings``: those of Spark; None: those of ``spark-defaults.conf``, which Spark will read.
    """
    if not is_cluster(master):
        return
    source = "the settings of spark-submit"
    if settings is None:
        source, settings = _defaults()
    if settings.get("spark.authenticate", "").lower() != "true":
        raise ClusterError(
            f"spark.master: {master}: {source} must have spark.authenticate true, and a secret: without it everyone who"
            f" reaches a port of the cluster runs programs as the server's user; see {PAGE}"
        )
    if file := settings.get(_SECRET_FILE):
        _require_private(Path(file))
    elif not settings.get(_SECRET) and not os.environ.get(SECRET_VARIABLE):
        raise ClusterError(
            f"spark.master: {master}: spark.authenticate is on, but Spark has no secret: name the file with {_SECRET}"
            f" by --properties-file, or its folder by SPARK_CONF_DIR; see {PAGE}"
        )


def _defaults() -> tuple[str, dict[str, str]]:
    """Return the path of the file with Spark's settings, and these. Raises ClusterError.

    One that is missing has none.
    """
    path = Path(os.environ.get("SPARK_CONF_DIR") or spark_home() / "conf") / "spark-defaults.conf"
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return f"{path} (SPARK_CONF_DIR)", {}
    except (OSError, UnicodeDecodeError) as error:
        raise ClusterError(f"spark.master: {path}: cannot be read: {error}") from error
    settings = {found[1]: found[2] for line in lines if (found := _LINE.fullmatch(line))}
    if settings.get(_SECRET):
        _require_private(path)
    return str(path), settings


def _require_private(path: Path) -> None:
    """Raise ClusterError if a file with the secret cannot be read, or can be by other users than owner and group."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise ClusterError(f"spark.master: {path}: cannot be read: {error.strerror}") from error
    if mode & _OTHERS:
        raise ClusterError(f"spark.master: {path}: others can read the secret (mode {mode:04o}): chmod 600 {path}")
