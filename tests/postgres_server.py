"""A real PostgreSQL of Debian's package, on a port and a folder of its own."""

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

PASSWORD = "pa'ss%word-7Qx"
_FOLDERS = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
_WITHIN_S = 120.0


class PostgresServer:
    """``start``, ``stop`` and ``kill`` as often as a test likes; data and port stay."""

    def __init__(self) -> None:
        if not _FOLDERS:
            pytest.skip("PostgreSQL is not installed (Debian package postgresql)")
        self._bin = _FOLDERS[-1].parent
        self._folder = Path(tempfile.mkdtemp(prefix="kopt-postgres-"))
        # The server refuses to run as root.
        self._user = "postgres" if os.geteuid() == 0 else None
        if self._user:
            shutil.chown(self._folder, self._user, self._user)
        self._password_file = self._folder / "password"
        self._password_file.write_text(PASSWORD)
        self._password_file.chmod(0o644)
        self._run("initdb", "-D", self._data, "-U", "kopt", "-A", "scram-sha-256", f"--pwfile={self._password_file}")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.start()

    @property
    def url(self) -> str:
        return self.url_of("postgres")

    def new_database(self) -> str:
        """The URL of a database that holds nothing."""
        name = f"d{uuid.uuid4().hex}"
        self.client("psql", "-d", "postgres", "-c", f"CREATE DATABASE {name}")
        return self.url_of(name)

    def url_of(self, database: str) -> str:
        return f"postgresql://kopt:{quote(PASSWORD)}@127.0.0.1:{self.port}/{database}"

    @property
    def _data(self) -> str:
        return str(self._folder / "data")

    def start(self) -> None:
        options = f"-p {self.port} -k {self._folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        log = str(self._folder / "log")
        self._run("pg_ctl", "-D", self._data, "-w", "-t", "120", "-l", log, "-o", options, "start")

    def stop(self) -> None:
        """As a node that goes away: connections are cut, nothing is written any more."""
        self._run("pg_ctl", "-D", self._data, "-w", "-t", "120", "-m", "immediate", "stop")

    def remove(self) -> None:
        with contextlib.suppress(subprocess.CalledProcessError):
            self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def client(self, program: str, *arguments: str, stdin: str = "") -> str:
        """The output of ``psql`` or ``pg_dump`` with the rights of the server's owner."""
        environ = {**os.environ, "PGPASSWORD": PASSWORD}
        of = ["-h", "127.0.0.1", "-p", str(self.port), "-U", "kopt"]
        command = [str(self._bin / program), *of, *arguments]
        return subprocess.run(command, env=environ, input=stdin, check=True, capture_output=True, text=True).stdout

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._bin / program), *arguments]
        home = pwd.getpwnam(self._user).pw_dir if self._user else str(Path.home())
        environ = {**os.environ, "HOME": home}
        quiet = subprocess.DEVNULL
        end_s = time.monotonic() + _WITHIN_S
        subprocess.run(
            command,
            user=self._user,
            group=self._user,
            cwd="/",
            env=environ,
            check=True,
            stdin=quiet,
            stdout=quiet,
            timeout=end_s - time.monotonic(),
        )


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    """A server that the tests of one module may stop and start."""
    server = PostgresServer()
    yield server
    server.remove()
