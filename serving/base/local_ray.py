"""How Ray runs: the one place that sets its authentication and its addresses, for training and serving alike.

Access to a port of Ray means running code as its user, so a Ray of our own asks for a token that only this process
and its children know, and listens on loopback alone. A cluster that is joined (``KOPT_RAY_ADDRESS``) brings both of
its own; in a ``RayService`` the operator sets them, and nothing here is called.
"""

import contextlib
import importlib
import ipaddress
import logging
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kopt.core.settings import Settings

_LOG = logging.getLogger(__name__)
_ATTEMPTS = 3
_STARTED_WITHIN_S = 120.0
"""Ray's own figure is thirty seconds, which a busy machine exceeds, and it has no switch."""
LOOPBACK_SWITCH = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""With 0 Ray takes loopback for this machine's address, as it does on Windows and macOS, and then every part of it
binds there. ``_node_ip_address="127.0.0.1"`` alone does nothing: Ray turns it into the outward address."""


class RayError(RuntimeError):
    """Ray could not be started, or not safely; the message says what to do."""


def prepare(settings: Settings) -> None:
    """Set Ray's authentication and addresses in ``os.environ``, for this process and all that it starts.

    For a Ray of our own whatever the environment says otherwise is overruled: ``RAY_AUTH_MODE=disabled`` is no
    choice. A token that is set (``RAY_AUTH_TOKEN``) is taken, so that Ray's own tools can ask as well.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if settings.ray_address:
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        return
    os.environ.update(authentication(os.environ.get("RAY_AUTH_TOKEN", "").strip() or secrets.token_hex(32)))
    os.environ[LOOPBACK_SWITCH] = "0"
    # An inherited address must not send our tasks, with their data, to another cluster.
    os.environ.pop("RAY_ADDRESS", None)
    if "ray" in sys.modules:
        _read_again()


def authentication(token: str) -> dict[str, str]:
    """The variables with which Ray asks for the token, as KubeRay's operator sets them too."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}


def is_local() -> bool:
    """Was this process, or the one that started it, prepared for a Ray of our own?"""
    return os.environ.get(LOOPBACK_SWITCH) == "0"


def start(settings: Settings, folder: Path, **options: Any) -> bool:
    """Join the cluster of the settings, or start a Ray on loopback with its files below ``folder``.

    Returns False when this process has a Ray already. ``options`` are ``ray.init``'s. Raises RayError.
    """
    prepare(settings)
    import ray

    if ray.is_initialized():
        return False
    with _own_sigterm():
        if settings.ray_address:
            ray.init(address=settings.ray_address, log_to_driver=False, logging_level="error")
        else:
            _start_local(ray, folder, options)
    return True


def keep_replica_on_loopback() -> None:
    """Call in the constructor of a Serve deployment: its port for other replicas is opened after that.

    Serve has no switch for the address of this port and binds it to every interface. Does nothing in a cluster,
    where replicas of other nodes call.
    """
    module: Any = importlib.import_module("ray.serve._private.replica")
    if is_local():
        module.add_port_to_grpc_server = _add_loopback_port


def _add_loopback_port(server: Any, address: str) -> int:
    tls = importlib.import_module("ray._common.tls_utils")
    return int(tls.add_port_to_grpc_server(server, f"127.0.0.1:{address.rpartition(':')[2]}"))


def _start_local(ray: Any, folder: Path, options: dict[str, Any]) -> None:
    for attempt in range(_ATTEMPTS):
        settings = {
            "_temp_dir": str(folder / str(attempt)),
            "num_cpus": _usable_cpus(),
            "log_to_driver": False,
            "logging_level": "error",
            **options,
        }
        try:
            with _longer_start():
                ray.init(address="local", include_dashboard=False, _node_ip_address="127.0.0.1", **settings)
        except Exception as error:  # noqa: BLE001  Ray gives up with a bare Exception
            _LOG.warning("Ray did not start (%s); trying again", error)
            ray.shutdown()
            _end_daemons(folder)
            failure = error
        else:
            return _refuse_open(ray)
    raise RayError(f"Ray did not start ({failure}); the machine may be too busy or short of memory, try again")


def _usable_cpus() -> int:
    """CPUs of this machine, or of this container where it has a limit; Ray starts a worker of 1 GiB for each."""
    utils: Any = importlib.import_module("ray._private.utils")
    # Ray itself takes half a CPU for none.
    return max(1, int(utils.get_num_cpus(override_docker_cpu_warning=True, truncate=False)))


@contextlib.contextmanager
def _longer_start() -> Iterator[None]:
    """Ray asks for its node until its own time is over: the first question waits for as long as the raylet lives."""
    services: Any = importlib.import_module("ray._private.services")
    ask = services.get_node

    def wait(*arguments: Any) -> Any:
        deadline = time.monotonic() + _STARTED_WITHIN_S
        while True:
            try:
                return ask(*arguments)
            except RuntimeError:
                if time.monotonic() > deadline or not _raylet_lives():
                    raise
                time.sleep(0.2)

    services.get_node = wait
    try:
        yield
    finally:
        services.get_node = ask


def _raylet_lives() -> bool:
    import psutil

    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if child.name() == "raylet" and child.status() != psutil.STATUS_ZOMBIE:
                return True
    return False


def _end_daemons(folder: Path) -> None:
    """Stop processes of a failed start: Ray forgets them, and they would hold ports and memory."""
    import psutil

    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if str(folder) in " ".join(child.cmdline()):
                child.kill()


def _refuse_open(ray: Any) -> None:
    """Stop a Ray that ignored its settings, as another version of it may."""
    address = ray.util.get_node_ip_address()
    if ipaddress.ip_address(address).is_loopback and _token_required():
        return
    ray.shutdown()
    raise RayError(f"Ray listens on {address} or asks for no token; install the Ray that requirements.lock names")


def _token_required() -> bool:
    raylet = importlib.import_module("ray._raylet")
    return bool(raylet.get_authentication_mode() == raylet.AuthenticationMode.TOKEN)


def _read_again() -> None:
    """Let a Ray that was imported before read the environment once more; its children read it anyway."""
    constants: Any = importlib.import_module("ray._private.ray_constants")
    constants.ENABLE_RAY_CLUSTER = False
    raylet = importlib.import_module("ray._raylet")
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()


@contextlib.contextmanager
def _own_sigterm() -> Iterator[None]:
    """Ray's own handler aborts the process, before a run is closed and temporary folders are gone."""
    ours = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, ours)
