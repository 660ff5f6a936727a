"""What ``kopt doctor`` looks at: each check is a function of the settings that returns a finding.

Checks look and change nothing; none of them starts Ray or loads a model stack before it has to.
"""

import importlib.metadata
import importlib.util
import os
import shutil
import socket
import sqlite3
import stat
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

from kopt.cli.local import state
from kopt.cli.local.listening import Listener, describe, listeners, rays_of_ours
from kopt.cli.output import column
from kopt.core.extras import EXTRAS, Extra, extra_for
from kopt.core.settings import KUBE_CONTEXT, Settings
from kopt.core.units import GIB, format_bytes

NEEDED_DISK_BYTES = 2 * GIB
NEEDED_MEMORY_BYTES = 4 * GIB
OTHER_NAMES = frozenset({KUBE_CONTEXT, "KOPT_CONFIG", "KOPT_REQUIRE_DATA", "KOPT_DEBUG", "KOPT_PAGES_HOSTS"})
VERSIONS = ("ray", "mlflow", "feast", "lightgbm", "torch")


class Severity(StrEnum):
    OK = "ok"
    NOTICE = "note"
    """Works, but the user should know."""
    BROKEN = "broken"


@dataclass(frozen=True)
class Finding:
    """One check's outcome; ``fix`` says what to do when it is not ok."""

    check: str = column("check")
    verdict: Severity = column("verdict", show=str)
    detail: str = column("detail")
    fix: str = column("what to do")


Check = Callable[[Settings, Mapping[str, str]], Finding]
CHECKS: list[Check] = []
"""In the order in which they are shown."""


def check(function: Check) -> Check:
    """Registers a check."""
    CHECKS.append(function)
    return function


def _finding(name: str, detail: str, fix: str = "", verdict: Severity | None = None) -> Finding:
    return Finding(name, verdict or (Severity.BROKEN if fix else Severity.OK), detail, fix)


@check
def python(settings: Settings, environ: Mapping[str, str]) -> Finding:
    result = ".".join(map(str, sys.version_info[:3]))
    return _finding("python", result, "" if sys.version_info >= (3, 11) else "install Python 3.11 or newer")


@check
def packages(settings: Settings, environ: Mapping[str, str]) -> Finding:
    installed = [name for name in VERSIONS if importlib.util.find_spec(name) is not None]
    versions = [f"{name} {importlib.metadata.version(name)}" for name in installed]
    return _finding("packages", ", ".join(versions) or "those of a plain installation")


def commands_of(extra: Extra) -> Finding:
    """Can these commands run? A plain installation runs all others."""
    names = f"kopt {', '.join(extra.commands)}"
    if missing := [module for module in extra.modules if importlib.util.find_spec(module) is None]:
        return _finding(names, f"not installed: {', '.join(missing)}", extra.install, Severity.NOTICE)
    return _finding(names, f"installed with {extra.name}")


@check
def home(settings: Settings, environ: Mapping[str, str]) -> Finding:
    home = settings.home
    existing = next(path for path in (home, *home.parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        return _finding("home", f"{home} cannot be written", "make it writable, or set KOPT_HOME to a folder of yours")
    if home.exists() and stat.S_IMODE(home.stat().st_mode) & 0o022:
        return _finding("home", f"{home} can be written by others", f"chmod go-w {home}")
    if home.exists() and home.stat().st_uid not in (0, os.geteuid()):
        return _finding("home", f"{home} belongs to user {home.stat().st_uid}", "set KOPT_HOME to a folder of yours")
    if home.exists() and stat.S_IMODE(home.stat().st_mode) & 0o077:
        fix = f"chmod go-rwx {home}; kopt up does that, too"
        return _finding("home", f"{home} can be read by others", fix, Severity.NOTICE)
    return _finding("home", str(home) if home.exists() else f"{home} (made by the first kopt up)")


@check
def disk(settings: Settings, environ: Mapping[str, str]) -> Finding:
    existing = next(path for path in (settings.home, *settings.home.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    fix = "" if free >= NEEDED_DISK_BYTES else f"free at least {format_bytes(NEEDED_DISK_BYTES)}, or move KOPT_HOME"
    return _finding("disk", f"{format_bytes(free)} free", fix)


@check
def memory(settings: Settings, environ: Mapping[str, str]) -> Finding:
    free = _available_memory_bytes()
    if free is None:
        return _finding("memory", "unknown on this system")
    short = free < NEEDED_MEMORY_BYTES
    fix = f"the platform needs about {format_bytes(NEEDED_MEMORY_BYTES)}; close something" if short else ""
    return _finding("memory", f"{format_bytes(free)} available", fix, Severity.NOTICE if short else None)


@check
def shared_memory(settings: Settings, environ: Mapping[str, str]) -> Finding:
    """Ray keeps its object store in /dev/shm; a container's default of 64 MiB makes it slow."""
    shm = Path("/dev/shm")
    if not shm.is_dir():
        return _finding("shared memory", "no /dev/shm; Ray uses files")
    free = shutil.disk_usage(shm).free
    fix = "" if free >= GIB // 2 else "give the container more, for example docker run --shm-size 1g"
    return _finding("shared memory", f"{format_bytes(free)} in /dev/shm", fix, Severity.NOTICE if fix else None)


@check
def environment(settings: Settings, environ: Mapping[str, str]) -> Finding:
    settings_names = {f"KOPT_{each.name.upper()}" for each in fields(Settings)} | OTHER_NAMES
    unknown = sorted(name for name in environ if name.startswith("KOPT_") and name not in settings_names)
    if not unknown:
        return _finding("environment", "every KOPT_ name is known")
    near = get_close_matches(unknown[0], settings_names, n=1)
    fix = f"did you mean {near[0]}?" if near else f"unset {unknown[0]}; known are {', '.join(sorted(settings_names))}"
    return _finding("environment", f"unknown: {', '.join(unknown)}", fix)


@check
def ports(settings: Settings, environ: Mapping[str, str]) -> Finding:
    running = state.read(settings.home) if settings.home.exists() else None
    if running is not None:
        return _finding("ports", f"in use by the running platform ({running.pages})")
    wanted = {name: getattr(settings, f"{name}_port") for name in ("api", "pages", "mlflow")}
    for name, port in wanted.items():
        if port and not is_free(settings.api_host, port):
            fix = f"stop what listens there, or set KOPT_{name.upper()}_PORT (0 takes a free one)"
            return _finding("ports", f"{port} ({name}) is taken", fix)
    return _finding("ports", ", ".join(f"{name} {port or 'any'}" for name, port in wanted.items()))


def _running(settings: Settings) -> tuple[list[Listener] | None, Mapping[str, str]]:
    """What our processes listen on (None where none runs), and the addresses that have a name."""
    running = state.read(settings.home) if settings.home.exists() else None
    addresses = running.addresses if running is not None else {}
    pids = ([running.pid] if running is not None else []) + sorted(rays_of_ours())
    return (listeners(pids, addresses) if pids else None), addresses


@check
def listening(settings: Settings, environ: Mapping[str, str]) -> Finding:
    """What the running platform and trainings really listen on, Ray's ports included."""
    ports, addresses = _running(settings)
    if ports is None:
        return _finding("listening", "nothing of this home runs; Ray would listen on loopback and ask for a token")
    beyond = [port for port in ports if not port.is_loopback and port.what not in addresses]
    open_ray = [port for port in ports if port.what == "ray" and not port.secret]
    fix = "run kopt down, install what requirements.lock names, and run kopt up" if beyond or open_ray else ""
    return _finding("listening", describe(ports) or "nothing", fix)


@check
def exposure(settings: Settings, environ: Mapping[str, str]) -> Finding:
    fix = "put authentication in front of it, or set KOPT_API_HOST=127.0.0.1"
    ports, addresses = _running(settings)
    if addresses:
        # What runs was started with other settings, maybe, than those of this shell.
        beyond = [port for port in ports or () if not port.is_loopback and port.what in addresses]
        if not beyond:
            return _finding("exposure", "servers listen on loopback only")
        return _finding("exposure", f"beyond this machine: {describe(beyond)}", fix, Severity.NOTICE)
    if settings.api_host in ("127.0.0.1", "localhost", "::1"):
        return _finding("exposure", "servers would listen on loopback only")
    return _finding("exposure", f"servers would listen on {settings.api_host}", fix, Severity.NOTICE)


@check
def ray_authentication(settings: Settings, environ: Mapping[str, str]) -> Finding:
    mode = environ.get("RAY_AUTH_MODE", "")
    if settings.ray_address and mode != "token":
        fix = "set RAY_AUTH_MODE=token for a Ray cluster beyond this machine"
        return _finding("ray", f"joins {settings.ray_address} with RAY_AUTH_MODE={mode or 'unset'}", fix)
    if settings.ray_address:
        return _finding("ray", f"joins {settings.ray_address}")
    ports = [port for port in _running(settings)[0] or () if port.what == "ray"]
    if not ports:
        return _finding("ray", "none runs; kopt up and kopt train start it on loopback and with a token")
    if unasked := [port for port in ports if not port.secret]:
        fix = "end it (kopt down, or the training): any user of this machine may run code as you"
        return _finding("ray", f"{len(unasked)} of its {len(ports)} ports ask for no token", fix)
    return _finding("ray", f"all of its {len(ports)} ports ask for a token")


@check
def keys(settings: Settings, environ: Mapping[str, str]) -> Finding:
    """A user who can read the signing key can sign a model that serving accepts."""
    for path in sorted(settings.keys.glob("*.key")) if settings.keys.is_dir() else ():
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            return _finding("keys", f"{path} can be read by others", f"chmod 600 {path}")
    made = settings.keys.is_dir() and any(settings.keys.iterdir())
    return _finding("keys", f"private ones in {settings.keys}" if made else "made by the first training")


@check
def registry(settings: Settings, environ: Mapping[str, str]) -> Finding:
    path = settings.home / "mlflow.db"
    if settings.mlflow_uri:
        return _reachable("registry", settings.mlflow_uri, 5000)
    if not path.exists():
        return _finding("registry", f"{path} (made by the first kopt up)")
    try:
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
            (outcome,) = database.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.Error as error:
        outcome = str(error)
    fix = "" if outcome == "ok" else f"restore {path} from a backup, or move it away and run kopt up"
    return _finding("registry", f"{path}: {outcome}", fix)


@check
def champion(settings: Settings, environ: Mapping[str, str]) -> Finding:
    from kopt.cli.errors import explain
    from kopt.models.registry.registry import NotRegisteredError, Registry
    from kopt.models.registry.shipped import verified_shipped
    from kopt.sdk.forecast import has_registry

    try:
        if not has_registry(settings):
            return _finding("champion", f"the shipped model, {verified_shipped('demand')}")
        version = Registry(settings).load("demand", "champion").version.version
    except NotRegisteredError:
        return _finding("champion", "none", "kopt up registers the shipped model as the first champion")
    except (ValueError, RuntimeError, OSError) as error:
        return _finding("champion", explain(error), "kopt models rollback, or kopt train demand")
    return _finding("champion", f"demand version {version}: signature verified, loads")


@check
def online_store(settings: Settings, environ: Mapping[str, str]) -> Finding:
    if not settings.redis_url:
        return _finding("online store", "SQLite under the home")
    return _reachable("online store", settings.redis_url, 6379)


@check
def shared_state(settings: Settings, environ: Mapping[str, str]) -> Finding:
    from kopt.serving.base.database.interface import DatabaseError
    from kopt.serving.base.database.opening import open_database

    if not settings.database_url:
        return _finding("state", f"SQLite under {settings.state}")
    database = open_database(settings.database_url, "")
    try:
        database.query("SELECT 1")
    except DatabaseError as error:
        fix = "start it, or correct KOPT_DATABASE_URL: host, port, name, user and password"
        return _finding("state", f"PostgreSQL: {error}", fix)
    finally:
        database.close()
    return _finding("state", "PostgreSQL answers")


@check
def data(settings: Settings, environ: Mapping[str, str]) -> Finding:
    if settings.data_dir is None:
        return _finding("data", "KOPT_DATA_DIR is not set; only tests, benchmarks and default models need it")
    has_demand = (settings.data_dir / "demand" / "demand.parquet").exists()
    fix = "" if has_demand else "point KOPT_DATA_DIR at a folder that holds demand/demand.parquet, or unset it"
    return _finding("data", str(settings.data_dir), fix)


@check
def accelerator(settings: Settings, environ: Mapping[str, str]) -> Finding:
    return _finding("gpu", "none is needed: all of this runs on CPUs")


def findings(settings: Settings, environ: Mapping[str, str]) -> Iterator[Finding]:
    """All checks in their order. A check that lacks a package says so."""
    for function in CHECKS:
        name = function.__name__.replace("_", " ")
        try:
            yield function(settings, environ)
        except ModuleNotFoundError as error:
            extra = extra_for(error.name or "")
            fix = extra.install if extra else f"install {error.name}"
            yield _finding(name, f"cannot be looked at without {error.name}", fix, Severity.NOTICE)
        if function is packages:
            yield from map(commands_of, EXTRAS)


def is_free(host: str, port: int) -> bool:
    """Could a server listen there now?"""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def free_port(host: str, reserved: Collection[int] = ()) -> int:
    """A TCP port that nothing listens on, none of ``reserved``."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    while True:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((host, 0))
            port = int(probe.getsockname()[1])
        if port not in reserved:
            return port


def _reachable(name: str, url: str, default_port: int) -> Finding:
    """Can a connection be made? The address is shown without user and password."""
    parts = urlsplit(url)
    address = f"{parts.scheme}://{parts.hostname or ''}:{parts.port or default_port}"
    if not parts.hostname:
        return _finding(name, parts.scheme or "no address")
    try:
        socket.create_connection((parts.hostname, parts.port or default_port), timeout=2).close()
    except OSError as error:
        return _finding(name, f"{address}: {error.strerror or error}", "start it, or correct the address")
    return _finding(name, f"{address} answers")


def _available_memory_bytes() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        return None
    return None
