"""Hostile scripts in the sandbox: nothing written outside, no socket, nothing left, an end in time."""

import io
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kopt.tracing.sandbox import EVENTS_VARIABLE, ConfinementError, Limits, Outcome, interpreter_folders, run_confined

NAMESPACES = ("user", "net", "mount", "ipc", "host name", "pid")
SHORT = Limits(wall_s=1.5)
Run = Callable[..., Outcome]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs Python source confined, in an empty folder."""

    def start(source: str, **options: Any) -> Outcome:
        folder = tmp_path / "project"
        folder.mkdir(exist_ok=True)
        options.setdefault("limits", Limits(wall_s=20))
        return run_confined([sys.executable, "-S", "-c", source], cwd=folder, **options)

    return start


@pytest.fixture(scope="session")
def every_protection(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skips where this machine lacks some protection: what then remains is tested elsewhere."""
    missing = run_confined(["/bin/true"], cwd=tmp_path_factory.mktemp("nothing")).missing
    if missing:
        pytest.skip(f"this machine lacks {'; '.join(missing)}")


def alive(marker: str) -> list[int]:
    """Processes on this machine whose command line holds ``marker``."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if marker.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


@pytest.mark.usefixtures("every_protection")
def test_an_ordinary_script_runs_and_its_output_and_status_come_back(run: Run) -> None:
    outcome = run("import sys; print('hello'); print('bad', file=sys.stderr); sys.exit(3)")
    assert (outcome.exit_status, outcome.limit_hit, outcome.error) == (3, None, None)
    assert "hello" in outcome.output_tail
    assert "bad" in outcome.output_tail
    assert outcome.missing == ()


def test_a_command_that_is_not_there_is_an_error_and_not_a_status(tmp_path: Path) -> None:
    outcome = run_confined(["/no/such/python"], cwd=tmp_path)
    assert outcome.exit_status is None
    assert "/no/such/python could not be started: No such file" in (outcome.error or "")


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such folder"):
        run_confined([sys.executable], cwd=tmp_path / "absent")


@pytest.mark.parametrize("without", [(), NAMESPACES], ids=["namespaces", "no namespaces"])
def test_an_endless_script_ends_at_the_limit_with_everything_it_started(run: Run, without: tuple[str, ...]) -> None:
    marker = f"survivor-{os.getpid()}-{len(without)}"
    source = f"""
import os, subprocess, sys, signal
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execv(sys.executable, [sys.executable, "-S", "-c", "while True: pass  # {marker}"])
        os._exit(0)
while True: pass
"""
    began = time.monotonic()
    outcome = run(source, limits=SHORT, without=without)
    assert outcome.limit_hit == "wall"
    assert outcome.exit_status is None
    assert time.monotonic() - began < 8
    assert alive(marker) == []


def test_what_a_script_leaves_running_ends_with_it(run: Run) -> None:
    marker = f"daemon-{os.getpid()}"
    source = f"""
import os, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv(sys.executable, [sys.executable, "-S", "-c", "import time; time.sleep(60)  # {marker}"])
    os._exit(0)
os.wait()
"""
    outcome = run(source)
    assert outcome.exit_status == 0
    assert outcome.seconds < 15
    assert alive(marker) == []


def test_the_script_ends_when_the_process_that_asked_is_killed(tmp_path: Path) -> None:
    marker = f"orphan-{os.getpid()}"
    asking = (
        "import sys; from kopt.tracing.sandbox import run_confined\n"
        f"run_confined([sys.executable, '-S', '-c', 'while True: pass  # {marker}'], cwd={str(tmp_path)!r})"
    )
    asker = subprocess.Popen([sys.executable, "-P", "-c", asking])
    give_up = time.monotonic() + 20
    while len(alive(f"True: pass  # {marker}")) < 2 and time.monotonic() < give_up:
        time.sleep(0.05)
    assert len(alive(marker)) >= 2
    asker.kill()
    asker.wait()
    while alive(marker) and time.monotonic() < give_up:
        time.sleep(0.05)
    assert alive(marker) == []


def test_a_memory_hog_is_ended_and_named(run: Run) -> None:
    outcome = run(
        "x = []\nwhile True: x.append(bytes(1 << 20) + b'1')", limits=Limits(wall_s=20, memory_bytes=200 << 20)
    )
    assert outcome.limit_hit == "memory"
    assert outcome.peak_resident_bytes > 200 << 20


def test_pages_that_forks_share_count_once(run: Run) -> None:
    source = """
import os, time
block = bytearray(os.urandom(1 << 20) * 120)
children = [os.fork() for _ in range(2)]
time.sleep(0.6)
"""
    outcome = run(source, limits=Limits(wall_s=20, memory_bytes=300 << 20))
    assert (outcome.exit_status, outcome.limit_hit) == (0, None)


def test_a_fork_bomb_ends_at_its_number_of_processes(run: Run) -> None:
    source = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    outcome = run(source, limits=Limits(wall_s=10, processes=40))
    assert outcome.limit_hit in ("processes", "wall")
    assert outcome.seconds < 15


def test_processor_time_is_limited(run: Run) -> None:
    outcome = run("while True: pass", limits=Limits(wall_s=20, cpu_s=1))
    assert outcome.limit_hit == "cpu"
    assert outcome.seconds < 15


@pytest.mark.parametrize("without", [(), ("mount",), ("landlock",)], ids=["all", "no mount namespace", "no Landlock"])
def test_nothing_is_written_outside(run: Run, tmp_path: Path, without: tuple[str, ...]) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("kept")
    (precious / "file").chmod(0o640)
    source = f"""
import os, shutil
os.symlink({str(precious)!r}, os.environ["HOME"] + "/link")
def attempt(step):
    try: step(); print("ESCAPED", step.__code__.co_consts)
    except OSError: pass
for path in ({str(precious / "new")!r}, {str(precious / "file")!r}, os.environ["HOME"] + "/link/new", "/etc/kopt-new",
             "/var/tmp/kopt-new", {str(Path.home() / "kopt-new")!r}, "/proc/sys/kernel/hostname"):
    attempt(lambda: open(path, "w"))
attempt(lambda: os.remove({str(precious / "file")!r}))
attempt(lambda: os.rename({str(precious / "file")!r}, {str(precious / "moved")!r}))
attempt(lambda: os.link({str(precious / "file")!r}, os.environ["HOME"] + "/hard"))
attempt(lambda: os.mkdir({str(precious / "folder")!r}))
shutil.rmtree({str(precious)!r}, ignore_errors=True)
if {("mount" not in without)!r}: attempt(lambda: os.chmod({str(precious / "file")!r}, 0o777))
open(os.environ["HOME"] + "/mine", "w").write("1")
print("done")
"""
    outcome = run(source, without=without)
    assert outcome.output_tail == "done\n"
    assert [entry.name for entry in precious.iterdir()] == ["file"]
    assert (precious / "file").read_text() == "kept"
    assert (precious / "file").stat().st_mode & 0o777 == 0o640


@pytest.mark.usefixtures("every_protection")
def test_the_working_folder_seems_writable_and_keeps_nothing(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "config.yaml").write_text("a: 1")
    source = """
import os, shutil
os.makedirs("checkpoints/last")
open("checkpoints/last/model.pt", "wb").write(b"x" * 1000)
open("config.yaml", "a").write("b: 2")
print(open("config.yaml").read(), sorted(os.listdir(".")))
shutil.rmtree(".", ignore_errors=True)
"""
    outcome = run(source)
    assert outcome.output_tail == "a: 1b: 2 ['checkpoints', 'config.yaml']\n"
    assert [entry.name for entry in folder.iterdir()] == ["config.yaml"]
    assert (folder / "config.yaml").read_text() == "a: 1"


def test_a_folder_given_for_writing_keeps_what_is_written_even_below_the_working_folder(
    run: Run, tmp_path: Path
) -> None:
    cache = tmp_path / "project" / "cache"
    cache.mkdir(parents=True)
    outcome = run(f"open({str(cache)!r} + '/built', 'w').write('1')", writable=[cache])
    assert outcome.exit_status == 0, outcome.output_tail
    assert (cache / "built").read_text() == "1"


@pytest.mark.usefixtures("every_protection")
def test_all_files_together_are_limited(run: Run) -> None:
    source = """
import os
import shutil
try:
    for number in range(100):
        open(f"{os.environ['HOME']}/{number}", "wb").write(b"x" * (1 << 20))
except OSError as error: print(error.strerror, number)
"""
    outcome = run(source, limits=Limits(wall_s=20, scratch_bytes=20 << 20))
    assert outcome.output_tail.startswith("No space left")


@pytest.mark.parametrize("without", [(), NAMESPACES], ids=["namespaces", "no namespaces"])
def test_no_socket_leads_out(run: Run, without: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        name = f"\0kopt-{os.getpid()}"
        unix.bind(name)
        unix.listen()
        source = f"""
import socket
def attempt(family, kind, address):
    try:
        with socket.socket(family, kind) as s:
            s.settimeout(1); s.connect(address); s.send(b"x"); print("ESCAPED", address)
    except OSError: pass
attempt(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", {tcp.getsockname()[1]}))
attempt(socket.AF_INET, socket.SOCK_DGRAM, ("192.0.2.1", 53))
attempt(socket.AF_INET6, socket.SOCK_DGRAM, ("2001:db8::1", 53))
attempt(socket.AF_UNIX, socket.SOCK_STREAM, {name!r})
try: print("ESCAPED", socket.getaddrinfo("example.com", 80))
except OSError: pass
try: print("ESCAPED", socket.socket(40, socket.SOCK_STREAM))
except OSError: print("done")
"""
        assert run(source, without=without).output_tail == "done\n"


def test_a_unix_socket_with_a_path_cannot_be_reached(run: Run, tmp_path: Path) -> None:
    """As a container engine's, which would be the way to everything."""
    path = str(tmp_path / "engine.sock")
    with socket.socket(socket.AF_UNIX) as engine:
        engine.bind(path)
        engine.listen()
        source = f"import socket\ns = socket.socket(socket.AF_UNIX); s.connect({path!r})"
        outcome = run(source, readable=[tmp_path])
    assert "PermissionError" in outcome.output_tail


@pytest.mark.usefixtures("every_protection")
def test_a_script_may_talk_to_itself(run: Run) -> None:
    source = """
import socket
server = socket.create_server(("127.0.0.1", 0))
socket.create_connection(server.getsockname()).send(b"x")
print(server.accept()[0].recv(1))
"""
    assert run(source).output_tail == "b'x'\n"


def test_secrets_of_the_parent_stay_there(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOPT_TEST_SECRET", "hunter2")
    source = f"""
import glob, os
print(dict(os.environ))
for path in [*glob.glob("/proc/[0-9]*/environ"), "/proc/{os.getpid()}/environ", "/proc/{os.getppid()}/environ"]:
    try: print(open(path, "rb").read())
    except OSError: pass
"""
    outcome = run(source, env={"HF_TOKEN": "hunter2", "TOKENIZERS_PARALLELISM": "false", "EPOCHS": "3"})
    assert "hunter2" not in outcome.output_tail
    assert "'HF_TOKEN': 'withheld'" in outcome.output_tail
    assert "'EPOCHS': '3'" in outcome.output_tail
    assert "'TOKENIZERS_PARALLELISM': 'false'" in outcome.output_tail


@pytest.mark.parametrize("without", [("mount", "pid"), ("user",), NAMESPACES])
def test_secrets_stay_in_the_parent_with_less_protection(
    run: Run, without: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KOPT_TEST_SECRET", "hunter2")
    parent = subprocess.Popen(["sleep", "30"], env={"KOPT_TEST_SECRET": "hunter2"})
    try:
        source = f"print(open('/proc/{parent.pid}/environ').read())"
        outcome = run(source, without=without)
    finally:
        parent.kill()
        parent.wait()
    assert "hunter2" not in outcome.output_tail
    assert outcome.exit_status == 1


def test_files_that_are_not_the_script_s_cannot_be_read(run: Run, tmp_path: Path) -> None:
    (tmp_path / "private").write_text("hunter2")
    outcome = run(f"print(open({str(tmp_path / 'private')!r}).read())")
    assert "PermissionError" in outcome.output_tail
    (tmp_path / "shown").mkdir()
    (tmp_path / "shown" / "data").write_text("public")
    source = f"print(open({str(tmp_path / 'shown' / 'data')!r}).read())"
    assert run(source, readable=[tmp_path / "shown"]).output_tail == "public\n"


def test_of_a_home_only_what_is_not_hidden_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".netrc").write_text("hunter2")
    (tmp_path / "train.py").write_text("print('trained'); print(open('.netrc').read())")
    outcome = run_confined([sys.executable, "-S", "train.py"], cwd=tmp_path)
    assert "trained" in outcome.output_tail
    assert "hunter2" not in outcome.output_tail
    assert any("working folder" in line for line in outcome.missing)


def test_kernel_interfaces_that_reach_others_are_refused(run: Run) -> None:
    source = f"""
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def attempt(name, result):
    print(name, "refused" if result < 0 else "ESCAPED")
attempt("ptrace", libc.ptrace(16, {os.getpid()}, 0, 0))
attempt("unshare", libc.unshare(0x10000000))
attempt("mount", libc.mount(b"tmpfs", b"/tmp", b"tmpfs", 0, None))
attempt("io_uring", libc.syscall(425, 8, ctypes.create_string_buffer(120)))
attempt("bpf", libc.syscall(321 if os.uname().machine == "x86_64" else 280, 0, None, 0))
entry, stack = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 0), ctypes.create_string_buffer(65536)
attempt("clone", libc.clone(entry, ctypes.byref(stack, 65520), 0x10000000, None))
for pid in (1, {os.getpid()}, {os.getppid()}):
    try: os.kill(pid, {int(signal.SIGCONT)}); print("signal", pid == 1 or "ESCAPED")
    except OSError: pass
try: os.setuid(0 if os.getuid() else 1); print("setuid ESCAPED")
except OSError: pass
"""
    tail = run(source).output_tail
    assert "ESCAPED" not in tail
    assert tail.count("refused") == 6


def test_a_flood_of_output_keeps_the_end_only(run: Run) -> None:
    source = "import os\nfor _ in range(200): os.write(1, b'x' * (1 << 20))\nos.write(1, b'the end')"
    outcome = run(source, limits=Limits(wall_s=20, tail_bytes=1000))
    assert outcome.output_bytes > 200 << 20
    assert len(outcome.output_tail) == 1000
    assert outcome.output_tail.endswith("xthe end")


def test_events_come_through_their_pipe_alone(run: Run) -> None:
    sink = io.BytesIO()
    source = f"""
import os
import shutil
os.write(int(os.environ["{EVENTS_VARIABLE}"]), b"\\0garbage")
print(sorted(os.listdir("/proc/self/fd")))
"""
    outcome = run(source, events=sink)
    assert sink.getvalue() == b"\0garbage"
    assert outcome.event_bytes == 8
    assert outcome.output_tail == "['0', '1', '2', '3', '4']\n"  # the last is the listing's own


def test_too_many_events_end_the_script(run: Run) -> None:
    sink = io.BytesIO()
    source = "import os\nwhile True: os.write(3, b'x' * 65536)"
    outcome = run(source, events=sink, limits=Limits(wall_s=20, event_bytes=1 << 20))
    assert outcome.limit_hit == "events"
    assert len(sink.getvalue()) <= 1 << 20
    assert outcome.seconds < 15


def test_a_reader_that_gives_up_ends_the_script(run: Run) -> None:
    class Refusing:
        def write(self, data: bytes) -> None:
            raise ValueError("malformed")

    marker = f"refused-{os.getpid()}"
    with pytest.raises(ValueError, match="malformed"):
        run(f"import os\nwhile True: os.write(3, b'x')  # {marker}", events=Refusing())
    assert alive(marker) == []


def test_closing_every_descriptor_and_deleting_everything_harms_nobody(run: Run) -> None:
    source = """
import os, shutil
for folder in (os.environ["HOME"], ".", "/dev/shm"): shutil.rmtree(folder, ignore_errors=True)
os.closerange(0, 1024)
while True: pass
"""
    outcome = run(source, limits=SHORT, events=io.BytesIO())
    assert outcome.limit_hit == "wall"


def test_deep_recursion_is_the_script_s_own_end(run: Run) -> None:
    outcome = run("import sys; sys.setrecursionlimit(10**8)\nf = lambda: eval('f()')\nf()")
    assert outcome.exit_status != 0


def test_without_a_cut_network_and_write_protection_a_script_is_refused(run: Run) -> None:
    nothing = (*NAMESPACES, "landlock", "seccomp")
    with pytest.raises(ConfinementError, match="a cut network and write protection"):
        run("print('ran')", without=nothing)
    outcome = run("print('ran')", without=nothing, allow_unconfined=True)
    assert outcome.output_tail == "ran\n"
    assert any("network is open" in line for line in outcome.missing)
    assert any("every system call" in line for line in outcome.missing)


def test_limits_must_be_above_zero() -> None:
    with pytest.raises(ValueError, match="wall_s"):
        Limits(wall_s=0)


def test_nothing_is_left_in_the_temporary_folder(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    assert run("import tempfile; print(tempfile.mkstemp())").exit_status == 0
    assert list(place.iterdir()) == []


def test_the_folders_of_an_interpreter_hold_what_it_imports() -> None:
    folders = [Path(folder) for folder in interpreter_folders(sys.executable)]
    assert any(Path(os.__file__).is_relative_to(folder) for folder in folders)
    assert any(Path(pytest.__file__).resolve().is_relative_to(folder) for folder in folders)
    assert Path("/") not in folders


def test_something_that_is_no_interpreter_is_named() -> None:
    with pytest.raises(ConfinementError, match="/bin/false does not work"):
        interpreter_folders("/bin/false")


def test_an_ordinary_user_is_protected_as_well(tmp_path: Path) -> None:
    """Needs a Python that others may start; this one may lie in a private home."""
    python = "/usr/bin/python3"
    if os.getuid() != 0 or not Path(python).exists():
        pytest.skip("already an ordinary user, or no system Python")
    root = str(Path(__import__("kopt").__file__).parent.parent)
    hostile = """
import socket
for step in (lambda: open("/var/tmp/kopt-new", "w"), lambda: socket.create_connection(("192.0.2.1", 80), 1)):
    try: step(); print("ESCAPED")
    except OSError: pass
open("mine", "w"); print("done")
"""
    source = f"""
import sys; sys.path.insert(0, {root!r})
from kopt.tracing.sandbox import run_confined
print(run_confined([{python!r}, "-c", {hostile!r}], cwd="/usr/share"))
"""
    found = subprocess.run(
        [python, "-I", "-B", "-c", source],
        user=65534,
        group=65534,
        extra_groups=[],
        cwd="/",
        timeout=60,
        check=False,
        env={"TMPDIR": "/tmp", "HOME": "/nonexistent"},
        capture_output=True,
        text=True,
    )
    if "No module named 'kopt'" in found.stderr:
        pytest.skip("the source tree is not readable to other users")
    assert "output_tail='done" in found.stdout, found.stdout + found.stderr
    assert not Path("/var/tmp/kopt-new").exists()


@pytest.mark.slow
def test_torch_and_a_compiler_work_inside(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    cache = tmp_path / "cache"
    cache.mkdir()
    source = f"""
import ctypes, subprocess, torch
x = torch.randn(100, 100, requires_grad=True); (x @ x).sum().backward()
open({str(cache / "a.cc")!r}, "w").write('extern "C" int answer() {{ return 42; }}')
subprocess.run(["g++", "-shared", "-fPIC", "-o", {str(cache / "a.so")!r}, {str(cache / "a.cc")!r}], check=True)
print(ctypes.CDLL({str(cache / "a.so")!r}).answer(), x.grad.shape[0])
"""
    outcome = run_confined(
        [sys.executable, "-c", source],
        cwd=tmp_path,
        writable=[cache],
        limits=Limits(wall_s=120),
        readable=interpreter_folders(sys.executable),
    )
    assert outcome.output_tail.strip().endswith("42 100")
    assert (cache / "a.so").exists()


def test_what_others_open_meanwhile_stays_open(tmp_path: Path) -> None:
    ended = threading.Event()
    broken: list[OSError] = []

    def open_and_close() -> None:
        while not ended.is_set():
            descriptors = [os.open(os.devnull, os.O_RDONLY) for _ in range(20)]
            time.sleep(0.001)
            for descriptor in descriptors:
                try:
                    os.close(descriptor)
                except OSError as error:
                    broken.append(error)

    others = threading.Thread(target=open_and_close)
    others.start()
    try:
        for _ in range(15):
            run_confined([sys.executable, "-S", "-c", "print(1)"], cwd=tmp_path, limits=Limits(wall_s=20))
    finally:
        ended.set()
        others.join()
    assert not broken
