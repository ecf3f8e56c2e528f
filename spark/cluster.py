"""Rejects clusters without authentication or without a secret: anyone could run code on them."""

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from spark.java_check import spark_home

PAGE = "docs/operations/cluster.md"

SECRET_VARIABLE = "_SPARK_AUTH_SECRET"  # noqa: S105 - the name that Spark gives it
"""The environment variable for the secret, which Spark and its executors read."""

_SECRET, _SECRET_FILE = "spark.authenticate.secret", "spark.authenticate.secret.file"
_OTHERS_MAY = 0o007

_LINE = re.compile(r"\s*([^\s#!=:][^\s=:]*)\s*[\s=:]\s*(.*?)\s*")
"""A line of a properties file, as Spark reads it: the name and the value."""


class ClusterError(Exception):
    """The configured cluster is not protected by a secret. The message says what to do."""


def is_cluster(master: str) -> bool:
    """Return whether a master is a standalone cluster of Spark, which needs a secret."""
    return master.startswith("spark://")


def require_secret(master: str, settings: Mapping[str, str] | None = None) -> None:
    """Raise ClusterError if ``master`` is a cluster without a secret, or with a secret that others can read.

    ``settings``: Spark's settings; None: those of ``spark-defaults.conf``.
    """
    if not is_cluster(master):
        return
    source = "the settings of spark-submit"
    if settings is None:
        source, settings = _defaults()
    if settings.get("spark.authenticate", "").lower() != "true":
        raise ClusterError(
            f"spark.master: {master}: {source} must have spark.authenticate true, and a secret: otherwise everyone with"
            f" access to a port of the cluster can run programs as the server's user; see {PAGE}"
        )
    if file := settings.get(_SECRET_FILE):
        _require_private(Path(file))
    elif not settings.get(_SECRET) and not os.environ.get(SECRET_VARIABLE):
        raise ClusterError(
            f"spark.master: {master}: spark.authenticate is on, but Spark has no secret: specify the file with"
            f" {_SECRET} by --properties-file, or its folder by SPARK_CONF_DIR; see {PAGE}"
        )


def _defaults() -> tuple[str, dict[str, str]]:
    """Return the path of Spark's settings file, and its settings, empty if it is missing. Raises ClusterError."""
    path = Path(os.environ.get("SPARK_CONF_DIR") or spark_home() / "conf") / "spark-defaults.conf"
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return f"{path} (SPARK_CONF_DIR)", {}
    except (OSError, UnicodeDecodeError) as error:
        raise ClusterError(f"spark.master: {path}: cannot be read: {error}") from error
    settings = {match[1]: match[2] for line in lines if (match := _LINE.fullmatch(line))}
    if settings.get(_SECRET):
        _require_private(path)
    return str(path), settings


def _require_private(path: Path) -> None:
    """Raise ClusterError if a file with the secret is unreadable, or readable for others than owner and group."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise ClusterError(f"spark.master: {path}: cannot be read: {error.strerror}") from error
    if mode & _OTHERS_MAY:
        raise ClusterError(f"spark.master: {path}: others can read the secret (mode {mode:04o}): chmod 600 {path}")
