"""``kopt up``, ``status`` and ``down``: the whole platform on this machine, in the foreground."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from kopt.cli.errors import Refused
from kopt.cli.home import make_home
from kopt.cli.local import events, state
from kopt.cli.local.checks import commands_of
from kopt.cli.local.example.kubeconfig import folder_of
from kopt.cli.local.example.starting import example_environ, example_service, prepare_example, wants_example
from kopt.cli.local.supervisor import Service, Supervisor, answers
from kopt.cli.options import Output
from kopt.cli.output import Answer, Format, column, show
from kopt.cli.progress import Steps, print_status
from kopt.core.extras import EXTRAS
from kopt.core.settings import Settings
from kopt.serving.base.environment import load_settings

SAYS_SO_WITHIN_S = 10.0
STOPS_WITHIN_S = 60.0
PORTS = {"api": "prediction endpoint", "pages": "web pages", "mlflow": "MLflow"}

MLFLOW_REMARK = "MLflow asks for a secret: kopt mlflow shows a link with it"
EXAMPLE_REMARK = (
    "the pages show an example cluster: kopt up --no-example leaves it out, KUBECONFIG=FILE kopt up shows yours"
)


@dataclass(frozen=True)
class AddressRow:
    """One address of the platform and whether it answers."""

    what: str = column("what")
    address: str = column("address")
    answers: bool = column("answers")


def up(
    train: Annotated[bool, typer.Option("--train/--no-train", help="Train a challenger if none was trained.")] = True,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the pages when they answer.")] = True,
    example: Annotated[
        bool | None,
        typer.Option(
            "--example/--no-example",
            help="Fill the pages from a simulated cluster; by default where neither KUBECONFIG nor services are given.",
        ),
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Start the platform on this machine and keep it running; Ctrl-C stops everything.

    The first start registers the shipped model as champion and trains a challenger on example services; later starts
    train nothing. Without a cluster of your own the pages show a simulated one, marked as an example; ``--no-example``
    leaves it out, ``KUBECONFIG=… kopt up`` shows yours. Addresses come from KOPT_API_PORT, KOPT_PAGES_PORT and
    KOPT_MLFLOW_PORT (0 takes any free port).

    Examples:

        kopt up

        KOPT_PAGES_PORT=0 kopt up --no-browser -o json

        KUBECONFIG=~/.kube/config kopt up
    """
    if (needed := commands_of(next(extra for extra in EXTRAS if "up" in extra.commands))).fix:
        raise Refused(f"kopt up needs packages that are {needed.detail}; {needed.fix}")
    settings = load_settings()
    make_home(settings.home)
    with state.hold(settings.home):
        ported = with_ports(settings)
        wanted = wants_example(settings.home, os.environ) if example is None else example
        port = prepare_example(ported) if wanted else None
        run = _Platform(ported, train=train, browser=browser, output=output, example_port=port)
        asyncio.run(run.run())


def with_ports(settings: Settings) -> Settings:
    """The settings with a free port wherever they say 0. Raises Refused for a port that is taken."""
    from kopt.cli.local.checks import free_port, is_free

    ports: dict[str, int] = {}
    for name, what in PORTS.items():
        port = getattr(settings, f"{name}_port")
        if port and port in ports.values():
            raise Refused(f"port {port} is meant for two servers; change KOPT_{name.upper()}_PORT")
        if port and not is_free(settings.api_host, port):
            advice = f"stop what listens there, or set KOPT_{name.upper()}_PORT to another one (0 takes a free one)"
            raise Refused(f"port {port} for the {what} is taken; {advice}")
        ports[name] = port or free_port(settings.api_host, reserved=set(ports.values()))
    return replace(settings, api_port=ports["api"], pages_port=ports["pages"], mlflow_port=ports["mlflow"], url="")


class _Platform:
    """One run of ``kopt up``."""

    def __init__(
        self, settings: Settings, *, train: bool, browser: bool, output: Format, example_port: int | None = None
    ) -> None:
        self._settings, self._browser, self._output = settings, browser, output
        where = addresses(settings)
        self._running = state.Running(
            os.getpid(), where["api"], where["pages"], where["mlflow"], started_at_s=time.time()
        )
        self._steps = Steps()
        parts = services(settings, train=train, on_line=self._on_line, example_port=example_port)
        self._remarks = [MLFLOW_REMARK, EXAMPLE_REMARK] if example_port is not None else [MLFLOW_REMARK]
        self._supervisor = Supervisor(parts, report=self._steps.sentence)
        self._started, self._serving = time.monotonic(), asyncio.Event()

    async def run(self) -> None:
        """Start, print the addresses, keep running until a signal, stop."""
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(each, stopped.set)
        self._write()
        ended = asyncio.create_task(stopped.wait())
        try:
            if await _first(ended, self._start()):
                self._announce()
                await _first(ended, self._supervisor.watch())
        finally:
            print_status("stopping …")
            await self._supervisor.stop()
            print_status("stopped")

    async def _start(self) -> None:
        with self._steps as steps:
            steps.begin("pages", f"start the {PORTS['pages']}")
            await self._supervisor.start(on_ready=self._on_ready)
            # Its address answers a moment before it says so; the summary comes after the last step.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._serving.wait(), SAYS_SO_WITHIN_S)

    def _on_ready(self, name: str) -> None:
        if name in PORTS:
            self._steps.end(name)
        self._write()

    def _on_line(self, line: str) -> None:
        event = events.parse(line)
        if event is None:
            return
        if event.key == "champion" and event.kind == "end":
            # Two processes that make MLflow's tables at the same time spoil them.
            self._steps.begin("mlflow", f"start {PORTS['mlflow']}")
            self._supervisor.release("mlflow")
        if (event.key, event.kind) == ("serving", "end"):
            self._serving.set()
        if event.kind == "begin":
            self._steps.begin(event.key, event.text)
        elif event.kind == "note":
            if event.key == "ray":
                # Also where nobody looks at a terminal: why it takes so long.
                self._steps.sentence(event.text)
            self._steps.update(event.key, event.text)
        else:
            self._steps.end(event.key, event.text, failed=event.kind == "failed")

    def _announce(self) -> None:
        seconds = {**self._steps.seconds, "total": round(time.monotonic() - self._started, 1)}
        self._running = replace(self._running, ready=True, seconds=seconds)
        self._write()
        if self._output == Format.JSON:
            show(Answer("up", [], document=self._running.addresses), self._output)
        else:
            rows = [AddressRow(PORTS[name], url, True) for name, url in self._running.addresses.items()]
            remark = f"ready after {seconds['total']:.1f} s; Ctrl-C stops everything, logs: {self._settings.home}/logs"
            show(Answer("addresses", rows, remarks=[remark, *self._remarks]), self._output)
        sys.stdout.flush()
        if self._browser and self._output == Format.TABLE and has_display(os.environ, sys.stdout.isatty()):
            import webbrowser

            webbrowser.open(self._running.pages)

    def _write(self) -> None:
        self._running = replace(self._running, pids=dict(self._supervisor.pids))
        state.write(self._settings.home, self._running)


async def _first(ended: "asyncio.Task[bool]", work: Coroutine[Any, Any, None]) -> bool:
    """Do the work unless the signal comes first; True when the work was done."""
    task = asyncio.create_task(work)
    done, _ = await asyncio.wait([ended, task], return_when=asyncio.FIRST_COMPLETED)
    if task in done:
        task.result()
        return True
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return False


def has_display(environ: Mapping[str, str], terminal: bool) -> bool:
    """Would a graphical browser open? A text browser would take the terminal over."""
    return terminal and (sys.platform == "darwin" or any(environ.get(n) for n in ("DISPLAY", "WAYLAND_DISPLAY")))


def addresses(settings: Settings) -> dict[str, str]:
    """Where the three servers answer; a wildcard interface is shown as loopback."""
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(settings.api_host, settings.api_host)
    host = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return {name: f"http://{host}:{getattr(settings, f'{name}_port')}" for name in PORTS}


def services(
    settings: Settings, *, train: bool, on_line: Callable[[str], None], example_port: int | None = None
) -> list[Service]:
    """The processes, with everything they need in their environment; with a port also that of the example cluster."""
    logs, where, python = settings.home / "logs", addresses(settings), (sys.executable, "-P", "-m")
    environ = {
        "KOPT_HOME": str(settings.home),
        "KOPT_API_PORT": str(settings.api_port),
        "KOPT_PAGES_PORT": str(settings.pages_port),
        "KOPT_MLFLOW_PORT": str(settings.mlflow_port),
        "KOPT_URL": where["api"],
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
    }
    example = example_service(settings, environ, example_port) if example_port is not None else []
    pages_environ = environ | (example_environ(settings.home) if example else {})
    if example:
        # What the example tells the endpoint is no part of what it keeps otherwise.
        environ |= {"KOPT_STATE_DIR": str(folder_of(settings.home) / "state")}
    again = (*python, "kopt.cli.local.platform", "--no-train")
    platform = (*python, "kopt.cli.local.platform") if train else again
    return [
        Service("platform", platform, f"{where['api']}/healthz", logs / "platform.log", environ, 900.0, on_line, again),
        Service(
            "pages", (*python, "kopt.cli.local.pages"), f"{where['pages']}/healthz", logs / "pages.log", pages_environ
        ),
        *example,
        Service(
            "mlflow",
            (*python, "kopt.cli.training.tracking"),
            f"{where['mlflow']}/health",
            logs / "mlflow.log",
            environ,
            nice=10,
            held=True,
        ),
    ]


def status(output: Output = Format.TABLE) -> None:
    """Where the platform of this home answers; status 1 when it does not run or does not answer.

    Example:

        kopt status -o json
    """
    running = _running(load_settings().home)
    probes = {"api": "/readyz", "pages": "/healthz", "mlflow": "/health"}

    async def probe() -> list[bool]:
        return list(await asyncio.gather(*(answers(running.addresses[name] + path) for name, path in probes.items())))

    result = asyncio.run(probe())
    rows = [AddressRow(PORTS[name], running.addresses[name], ok) for name, ok in zip(probes, result, strict=True)]
    up_s = max(0, int(time.time() - running.started_at_s))
    header = {"pid": running.pid, "ready": running.ready and all(result), "seconds_up": up_s, **running.addresses}
    show(Answer("addresses", rows, header if output != Format.TABLE else {"process": running.pid}), output)
    if not all(result):
        print_status("not everything answers" + ("" if running.ready else " yet: it is still starting"))
        raise typer.Exit(1)


def down(output: Output = Format.TABLE) -> None:
    """Stop the platform of this home and wait until all of it is gone.

    Example:

        kopt down
    """
    home = load_settings().home
    running = _running(home)
    os.kill(running.pid, signal.SIGTERM)
    for _ in _until(STOPS_WITHIN_S):
        if not state.is_held(home):
            show(
                Answer("stopped", [], document={"stopped": running.pid}, empty=f"stopped process {running.pid}"), output
            )
            return
    raise Refused(f"process {running.pid} has not ended within {STOPS_WITHIN_S:g} s; look into {home}/logs")


def _running(home: Path) -> state.Running:
    running = state.read(home) if home.exists() else None
    if running is None:
        raise Refused(f"no platform runs on {home}; start it with kopt up")
    return running


def _until(seconds: float) -> Iterator[None]:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        yield
        time.sleep(0.1)
