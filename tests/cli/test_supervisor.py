"""Processes come up, come back, and never outlive their supervisor."""

import asyncio
import contextlib
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from controlplane.processes import PATIENCE_S, until

from kopt.cli.errors import Refused
from kopt.cli.local.checks import free_port
from kopt.cli.local.supervisor import BackOff, Service, Supervisor, answers, last_line

SLEEPER = "import time; print(1, flush=True); time.sleep(300)"
QUICK = BackOff(limit=2, first_s=0.05)


def web(tmp_path: Path, name: str = "web", port: int | None = None) -> Service:
    port = port or free_port("127.0.0.1")
    command = (sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "--directory", str(tmp_path), str(port))
    return Service(name, command, f"http://127.0.0.1:{port}/", tmp_path / f"{name}.log")


def script(tmp_path: Path, code: str, **more: object) -> Service:
    url = f"http://127.0.0.1:{free_port('127.0.0.1')}/"
    return Service("job", (sys.executable, "-c", code), url, tmp_path / "job.log", **more)  # type: ignore[arg-type]


def command_of(guard: int) -> psutil.Process:
    """The process that a guard keeps."""
    return psutil.Process(guard).children()[0]


async def test_services_start_answer_and_stop(tmp_path: Path) -> None:
    ready: list[str] = []
    supervisor = Supervisor([web(tmp_path, "one"), web(tmp_path, "two")], report=print)
    await supervisor.start(on_ready=ready.append)
    processes = [psutil.Process(pid) for pid in supervisor.pids.values()]
    assert sorted(ready) == ["one", "two"]
    await supervisor.stop()
    assert not any(process.is_running() for process in processes)


async def test_a_service_that_dies_comes_back_and_that_is_told(tmp_path: Path) -> None:
    told: list[str] = []
    service = web(tmp_path)
    supervisor = Supervisor([service], report=told.append, back_off=QUICK)
    await supervisor.start()
    first = supervisor.pids["web"]
    command_of(first).kill()
    await until(lambda: supervisor.pids.get("web", first) != first)
    async with asyncio.timeout(PATIENCE_S):
        while not await answers(service.ready_url):
            await asyncio.sleep(0.05)
    assert "web ended with status 137" in told[0]
    await supervisor.stop()


async def test_a_service_that_keeps_dying_ends_the_whole_with_its_last_words(tmp_path: Path) -> None:
    supervisor = Supervisor([web(tmp_path)], report=lambda text: None, back_off=QUICK)
    await supervisor.start()

    async def kill_on() -> None:
        while True:
            for pid in list(supervisor.pids.values()):
                with contextlib.suppress(psutil.NoSuchProcess):  # it ended between being listed and being looked at
                    for child in psutil.Process(pid).children():
                        child.kill()
            await asyncio.sleep(0.05)

    killer = asyncio.create_task(kill_on())
    with pytest.raises(Refused, match="web ended 3 times"):
        await asyncio.wait_for(supervisor.watch(), PATIENCE_S)
    killer.cancel()
    await supervisor.stop()


async def test_a_service_that_ends_before_it_answers_is_not_tried_again(tmp_path: Path) -> None:
    failing = script(tmp_path, "import sys; sys.exit('no key in the lock')")
    supervisor = Supervisor([failing, web(tmp_path)], report=print)
    with pytest.raises(Refused, match=r"status 1 before it answered: no key in the lock"):
        await supervisor.start()
    await supervisor.stop()
    assert not supervisor.pids


async def test_a_held_service_waits_for_its_release(tmp_path: Path) -> None:
    supervisor = Supervisor([web(tmp_path, "one"), replace(web(tmp_path, "two"), held=True)], report=print)
    ran: list[set[str]] = []

    def on_ready(name: str) -> None:
        ran.append(set(supervisor.pids))
        supervisor.release("two")

    await asyncio.wait_for(supervisor.start(on_ready=on_ready), PATIENCE_S)
    assert ran == [{"one"}, {"one", "two"}]
    assert set(supervisor.pids) == {"one", "two"}
    await supervisor.stop()


async def test_stopping_ends_the_wait_of_a_held_service(tmp_path: Path) -> None:
    supervisor = Supervisor([replace(web(tmp_path), held=True)], report=print)
    starting = asyncio.create_task(supervisor.start())
    await asyncio.sleep(0.1)
    await asyncio.wait_for(supervisor.stop(), PATIENCE_S)
    assert not supervisor.pids
    starting.cancel()


async def test_a_service_that_asks_to_be_tried_again_is(tmp_path: Path) -> None:
    service = web(tmp_path)
    marker = tmp_path / "tried"
    code = f"""
import os, pathlib, sys
marker = pathlib.Path({str(marker)!r})
if not marker.exists():
    marker.touch()
    sys.exit(75)
os.execv(sys.executable, {[*service.command]!r})
"""
    again = Service("web", (sys.executable, "-c", code), service.ready_url, service.log)
    told: list[str] = []
    supervisor = Supervisor([again], report=told.append, back_off=QUICK)
    await supervisor.start()
    assert "status 75; starting it again" in told[0]
    await supervisor.stop()


async def test_a_service_that_never_answers_is_given_up(tmp_path: Path) -> None:
    supervisor = Supervisor([script(tmp_path, "import time; time.sleep(60)", starts_within_s=0.5)], report=print)
    with pytest.raises(Refused, match=r"gave no answer in 0\.5 s"):
        await supervisor.start()
    await supervisor.stop()


async def test_standard_output_is_a_protocol_and_standard_error_the_log(tmp_path: Path) -> None:
    lines: list[str] = []
    code = "import sys, time; print('begun', flush=True); print('said', file=sys.stderr, flush=True); time.sleep(60)"
    supervisor = Supervisor([script(tmp_path, code, on_line=lines.append)], report=print)
    starting = asyncio.create_task(supervisor.start())
    await until(lambda: lines == ["begun"])
    await until(lambda: last_line(tmp_path / "job.log") == "said")
    await supervisor.stop()
    starting.cancel()


def test_nothing_outlives_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    """Not the command, and not a daemon that it detached from itself."""
    daemon = "import os, time\nif os.fork(): os._exit(0)\nos.setsid()\ntime.sleep(300)"
    code = (
        f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {daemon!r}]).wait(); "
        "print(1, flush=True); time.sleep(300)"
    )
    guard = subprocess.Popen(
        [sys.executable, "-P", "-m", "kopt.cli.local.child_guard", "0", sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert guard.stdin is not None
    assert guard.stdout is not None
    guard.stdout.readline()
    kept = psutil.Process(guard.pid).children(recursive=True)
    assert len(kept) >= 2, "the detached daemon is adopted by the guard"
    guard.stdin.close()
    guard.wait(PATIENCE_S)
    guard.stdout.close()
    assert not [process for process in kept if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


def test_the_command_falls_with_a_guard_that_is_killed() -> None:
    guard = subprocess.Popen(
        [sys.executable, "-P", "-m", "kopt.cli.local.child_guard", "0", sys.executable, "-c", SLEEPER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert guard.stdin is not None
    assert guard.stdout is not None
    guard.stdout.readline()
    (child,) = psutil.Process(guard.pid).children()
    guard.kill()
    guard.wait()
    guard.stdin.close()
    guard.stdout.close()
    _, alive = psutil.wait_procs([child], timeout=PATIENCE_S)
    assert not alive


def test_the_guard_gives_its_commands_status() -> None:
    for code, status in (("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 128 + signal.SIGKILL)):
        command = [sys.executable, "-P", "-m", "kopt.cli.local.child_guard", "0", sys.executable, "-c", code]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as guard:
            assert guard.wait(PATIENCE_S) == status


def test_a_long_log_is_put_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kopt.cli.local import supervisor

    monkeypatch.setattr(supervisor, "LOG_LIMIT_BYTES", 10)
    log = tmp_path / "logs" / "web.log"
    for _ in range(2):
        with supervisor._open_log(log) as file:
            file.write(b"twelve bytes")
    assert log.read_bytes() == b"twelve bytes"
    assert (tmp_path / "logs" / "web.log.old").exists()
    assert log.stat().st_mode & 0o077 == 0


async def test_no_thread_is_needed_to_start_and_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that gives no more threads must not keep a process that nobody knows of, and its port."""

    def none_left(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none_left)
    service = web(tmp_path)
    supervisor = Supervisor([service], report=print)
    await supervisor.start()
    assert await answers(service.ready_url)
    await supervisor.stop()
    assert not await answers(service.ready_url)


@pytest.mark.parametrize("by_signal", [True, False])
def test_a_guard_without_threads_ends_its_command(by_signal: bool) -> None:
    code = (
        "import sys, threading\n"
        "def none_left(*_): raise RuntimeError('no thread')\n"
        "threading.Thread.start = none_left\n"
        "from kopt.cli.local.child_guard import main\n"
        f"sys.exit(main([sys.executable, '-c', {SLEEPER!r}]))"
    )
    guard = subprocess.Popen([sys.executable, "-P", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert guard.stdin is not None
    assert guard.stdout is not None
    guard.stdout.readline()
    (child,) = psutil.Process(guard.pid).children()
    if by_signal:
        guard.terminate()
    else:
        guard.stdin.close()
    assert guard.wait(PATIENCE_S) == 128 - (-signal.SIGTERM)
    assert not child.is_running()
    guard.stdout.close()
    guard.stdin.close()
