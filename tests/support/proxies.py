"""nginx and Caddy as the distribution has them, with the configurations of deploy/, on loopback and in a folder."""

import contextlib
import os
import random
import re
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.certificate import make_certificate
from tests.support.server import PATIENCE, waiting

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
KINDS = ("nginx", "caddy")


class Proxy:
    """A proxy that runs. ``folder`` has all that it writes."""

    def __init__(self, folder: Path, process: "subprocess.Popen[bytes]", port: int, plain_port: int) -> None:
        self.folder = folder
        self.process = process
        self.port = port
        self.url = f"https://127.0.0.1:{port}"
        self.plain_url = f"http://127.0.0.1:{plain_port}"

    def written(self) -> dict[str, bytes]:
        """What its files have: logs, temporary files, all."""
        return {str(path): path.read_bytes() for path in self.folder.rglob("*") if path.is_file()}


@contextlib.contextmanager
def proxy(kind: str, folder: Path, upstream: str, change: Callable[[str], str] = lambda text: text) -> Iterator[Proxy]:
    """Run a proxy in front of the server at ``upstream``. ``change``: what a test changes in the configuration."""
    if not shutil.which(kind):
        pytest.skip(f"needs {kind}")
    folder.mkdir()
    make_certificate(folder)
    port, plain_port = free_ports(2)
    address = upstream.removeprefix("http://")
    start = _start_nginx if kind == "nginx" else _start_caddy
    process = start(folder, lambda text: change(text.replace("127.0.0.1:8080", address)), port, plain_port)
    found = Proxy(folder, process, port, plain_port)
    try:
        for _ in waiting(lambda: f"{kind}: {(folder / 'log').read_text()}"):
            assert process.poll() is None, (folder / "log").read_text()
            with contextlib.suppress(OSError):
                ssl.get_server_certificate(("127.0.0.1", port))
                break
        if kind == "nginx":
            _set_traps(folder)
        yield found
    finally:
        process.terminate()
        process.wait(PATIENCE)


def free_ports(count: int) -> list[int]:
    """Return ports that nobody uses, for a program that cannot choose one itself.

    They are none of those that the system hands out: another test's connection could get one before that program does.
    """
    handed_out = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    found: set[int] = set()
    while len(found) < count:
        port = random.randrange(10_000, max(handed_out, 20_000))
        with contextlib.suppress(OSError), socket.socket() as each:
            each.bind(("127.0.0.1", port))
            found.add(port)
    return list(found)


NGINX = """
{user}
pid {folder}/pid;
daemon off;
worker_processes 1;
error_log {folder}/log warn;
events {{ worker_connections 512; }}
http {{
    {temporary}
    include {folder}/conclave.conf;
}}
"""

TEMPORARY = [f"{name}_temp_path" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")]


def nginx_command(folder: Path) -> list[str]:
    return ["nginx", "-e", str(folder / "log"), "-p", str(folder), "-c", str(folder / "nginx.conf")]


def write_nginx(folder: Path, change: Callable[[str], str], port: int, plain_port: int) -> None:
    """Write the configuration: of the one in deploy/ ports, certificate and the file of the log are others."""
    text = (DEPLOY / "nginx" / "conclave.conf").read_text()
    text = re.sub(r"listen \[::\].*\n", "", text)
    text = text.replace("listen 80;", f"listen 127.0.0.1:{plain_port};")
    # Little waits in the system: a page that a client does not take is in nginx, or in a file of it.
    text = text.replace("listen 443 ", f"listen 127.0.0.1:{port} sndbuf=32k ")
    text = text.replace("/etc/letsencrypt/live/chat.example.org/fullchain.pem", f"{folder}/cert.pem")
    text = text.replace("/etc/letsencrypt/live/chat.example.org/privkey.pem", f"{folder}/key.pem")
    text = text.replace("/var/log/nginx/conclave.log", f"{folder}/conclave.log")
    (folder / "conclave.conf").write_text(change(text))
    user = "user root;" if os.geteuid() == 0 else ""
    temporary = " ".join(f"{name} {folder}/{name};" for name in TEMPORARY)
    (folder / "nginx.conf").write_text(NGINX.format(user=user, folder=folder, temporary=temporary))


def _start_nginx(folder: Path, change: Callable[[str], str], port: int, plain_port: int) -> "subprocess.Popen[bytes]":
    write_nginx(folder, change, port, plain_port)
    with (folder / "log").open("w") as log:
        return subprocess.Popen(nginx_command(folder), stderr=log)


def _set_traps(folder: Path) -> None:
    """Put a file where nginx has its folders for bodies: a request whose body it would write fails, and the log tells.

    A look at the folders would not do: what is there is removed with the request.
    """
    for name in TEMPORARY:
        (folder / name).rmdir()
        (folder / name).touch()


def _start_caddy(folder: Path, change: Callable[[str], str], port: int, plain_port: int) -> "subprocess.Popen[bytes]":
    text = (DEPLOY / "caddy" / "Caddyfile").read_text()
    text = text.replace("\n{\n", "\n{\n\tadmin off\n\tauto_https off\n\tdefault_sni localhost\n", 1)
    bound = "\tbind 127.0.0.1\n"
    text = text.replace("http://chat.example.org {\n", f"http://127.0.0.1:{plain_port} {{\n{bound}")
    certificate = f"\ttls {folder}/cert.pem {folder}/key.pem\n"
    text = text.replace("https://chat.example.org {\n", f"https://127.0.0.1:{port} {{\n{bound}{certificate}")
    (folder / "Caddyfile").write_text(change(text))
    home = {"HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "XDG_DATA_HOME": str(folder), "TMPDIR": str(folder)}
    with (folder / "log").open("w") as log:
        command = ["caddy", "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"]
        return subprocess.Popen(command, stderr=log, env=os.environ | home)
