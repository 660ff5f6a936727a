"""Hostile scripts in the sandbox of `kopt estimate`, with every protection and where the kernel lacks some.

Each promise holds in each combination, as root and as an ordinary user, or the script is refused.
"""

import json
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import kopt

SYSTEM_PYTHON = "/usr/bin/python3"
NOBODY = 65534
NAMESPACES = ("user", "net", "mount", "ipc", "host name", "pid")
LACKING = [
    (),
    ("user",),
    ("net",),
    ("mount",),
    ("pid",),
    ("pid", "landlock 6"),
    ("landlock",),
    ("other user",),
    ("landlock", "user"),
    NAMESPACES,
    (*NAMESPACES, "landlock 6"),
    (*NAMESPACES, "other user"),
]
DRIVER = """
import json, sys
task = json.load(sys.stdin)
sys.path.insert(0, task["root"])
from dataclasses import asdict
from kopt.tracing.sandbox import ConfinementError, Limits, run_confined
try:
    outcome = run_confined([task["python"], "-I", "-S", "-c", task["source"]], cwd=task["cwd"],
                           limits=Limits(**task["limits"]), without=task["without"])
    print(json.dumps(asdict(outcome)))
except ConfinementError as error:
    print(json.dumps({"refused": str(error)}))
"""
ATTACKS = """
import ctypes, fcntl, mmap, os, resource, signal, socket, sys, threading, time
victim, kept = {victim}, {kept!r}
libc = ctypes.CDLL(None, use_errno=True)
machine = os.uname().machine == "x86_64"
def attempt(name, step, refused=OSError):
    try: result = step()
    except refused: return
    if result is None or result is True or (isinstance(result, int) and result >= 0): print("ESCAPED", name, result)
def quiet(step):
    try: step()
    except OSError: pass
attempt("read a file", lambda: open(kept) and None)
attempt("read shadow", lambda: open("/etc/shadow") and None)
attempt("read fstab", lambda: open("/etc/fstab") and None)
attempt("list a home", lambda: os.listdir({home!r}) and None)
attempt("write a file", lambda: open(kept, "a") and None)
attempt("write beside it", lambda: open(kept + ".new", "w") and None)
attempt("remove a file", lambda: os.remove(kept))
attempt("rename a file", lambda: os.rename(kept, kept + ".moved"))
attempt("truncate a file", lambda: os.truncate(kept, 0))
attempt("link a file", lambda: os.link(kept, os.environ["HOME"] + "/hard"))
for step in (lambda: os.chmod(kept, 0o777), lambda: os.utime(kept, (1, 1)), lambda: os.chown(kept, -1, os.getgid()),
             lambda: os.setxattr(kept, "user.kopt", b"1")):
    quiet(step)
attempt("signal", lambda: os.kill(victim, 0))
attempt("signal to a group", lambda: os.kill(-victim, 0))
attempt("signal by thread", lambda: libc.tgkill(victim, victim, 0))
attempt("limits of another", lambda: resource.prlimit(victim, resource.RLIMIT_CPU) and None)
attempt("priority of another", lambda: os.setpriority(os.PRIO_PROCESS, victim, 19))
attempt("affinity of another", lambda: os.sched_setaffinity(victim, {{0}}))
attempt("environment of another", lambda: open(f"/proc/{{victim}}/environ").read() and None)
attempt("memory of another", lambda: open(f"/proc/{{victim}}/mem", "rb").read(1) and None)
attempt("ptrace", lambda: libc.ptrace(16, victim, 0, 0))
attempt("keyring", lambda: libc.syscall(248 if machine else 217, b"user", b"kopt", b"x", 1, -4))
attempt("keyctl", lambda: libc.syscall(250 if machine else 219, 0, -5, 0))
attempt("io_uring", lambda: libc.syscall(425, 8, ctypes.create_string_buffer(120)))
attempt("user namespace", lambda: libc.unshare(0x10000000))
attempt("mount namespace", lambda: libc.unshare(0x20000))
attempt("mount", lambda: libc.mount(b"tmpfs", b"/tmp", b"tmpfs", 0, None))
attempt("bpf", lambda: libc.syscall(321 if machine else 280, 0, None, 0))
attempt("file handles", lambda: libc.syscall(304 if machine else 265, -100, ctypes.create_string_buffer(32), 0))
attempt("device", lambda: os.mknod(os.environ["HOME"] + "/disk", 0o60600, os.makedev(8, 0)))
attempt("root again", lambda: os.setuid(0))
attempt("System V memory", lambda: libc.shmctl(0, 0, None))
attempt("a call of tomorrow", lambda: libc.syscall(468, 0, 0, 0, 0))
def connect(family, address):
    with socket.socket(family, socket.SOCK_STREAM) as s:
        s.settimeout(2); s.connect(address)
attempt("network", lambda: connect(socket.AF_INET, ("127.0.0.1", {port})))
attempt("far network", lambda: connect(socket.AF_INET, ("192.0.2.1", 80)))
attempt("UNIX socket", lambda: connect(socket.AF_UNIX, "/run/kopt-absent.sock"))
attempt("shared memory", lambda: mmap.mmap(-1, 4096) and None)
attempt("shared zeros", lambda: mmap.mmap(os.open("/dev/zero", os.O_RDWR), 4096) and None, (OSError, ValueError))
started = 0
try:
    while started < 400:
        threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
        started += 1
except RuntimeError: pass
if started >= 400: print("ESCAPED threads", started)
open(os.environ["HOME"] + "/mine", "w").write("1")
print("done", flush=True)
os._exit(0)
"""


@dataclass(frozen=True)
class Result:
    """How a script ended, or why it was refused."""

    refused: str | None
    output: str = ""
    limit_hit: str | None = None
    exit_status: int | None = None
    error: str | None = None
    missing: tuple[str, ...] = ()


class Attacker:
    """Runs scripts confined, asked for by a process of another user or of this one's."""

    def __init__(self, user: int | None, folder: Path) -> None:
        self.user, self.folder = user, folder
        self.root = str(Path(kopt.__file__).parent.parent)

    def __call__(self, source: str, without: tuple[str, ...] = (), **limits: Any) -> Result:
        task = {
            "root": self.root,
            "python": SYSTEM_PYTHON,
            "source": source,
            "cwd": str(self.folder),
            "limits": {"wall_s": 60, "processes": 20, **limits},
            "without": without,
        }
        ended = self._start([SYSTEM_PYTHON, "-I", "-B", "-c", DRIVER], input=json.dumps(task))
        if "No module named 'kopt'" in ended.stderr:
            pytest.skip("the source tree is not readable to other users")
        assert ended.returncode == 0, ended.stderr
        report = json.loads(ended.stdout)
        if "refused" in report:
            return Result(report["refused"])
        return Result(
            None,
            report["output_tail"],
            report["limit_hit"],
            report["exit_status"],
            report["error"],
            tuple(report["missing"]),
        )

    def _start(self, argv: list[str], **options: Any) -> "subprocess.CompletedProcess[str]":
        as_user = {} if self.user is None else {"user": self.user, "group": self.user, "extra_groups": []}
        environment = {"HOME": str(self.folder.parent / "home"), "TMPDIR": "/tmp"}
        return subprocess.run(
            argv,
            cwd="/",
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
            **as_user,
            **options,
        )  # type: ignore[call-overload,no-any-return]


@pytest.fixture(params=["root", "ordinary"])
def attacker(request: pytest.FixtureRequest) -> Iterator[Attacker]:
    """One per kind of user; tests that run as an ordinary user have only that one."""
    if not Path(SYSTEM_PYTHON).exists():
        pytest.skip("no system Python, which every user may start")
    if request.param == "root" and os.getuid() != 0:
        pytest.skip("not root")
    user = NOBODY if request.param == "ordinary" and os.getuid() == 0 else None
    place = Path(tempfile.mkdtemp(prefix="kopt-attack-", dir="/tmp"))
    for folder in (place / "project", place / "home"):
        folder.mkdir()
    (place / "kept").write_text("kept")
    (place / "kept").chmod(0o600)
    if user is not None:
        for path in (place, *place.iterdir()):
            os.chown(path, user, user)
    yield Attacker(user, place / "project")
    shutil.rmtree(place)


@pytest.mark.parametrize("without", LACKING, ids=lambda names: " ".join(names) or "nothing")
def test_every_promise_holds_in_every_combination_or_the_script_is_refused(
    attacker: Attacker, without: tuple[str, ...]
) -> None:
    kept = attacker.folder.parent / "kept"
    os.utime(kept, (1_000_000_000, 1_000_000_000))
    before = kept.stat()
    sleeper = subprocess.Popen(["sleep", "300"], user=attacker.user, group=attacker.user, start_new_session=True)
    with socket.create_server(("127.0.0.1", 0)) as server:
        try:
            source = ATTACKS.format(
                victim=sleeper.pid, kept=str(kept), home=str(kept.parent / "home"), port=server.getsockname()[1]
            )
            result = attacker(source, without)
        finally:
            sleeper.kill()
            sleeper.wait()
    after = kept.stat()
    assert "ESCAPED" not in result.output
    assert (after.st_mode, after.st_uid, after.st_gid, after.st_mtime_ns, after.st_ctime_ns) == (
        before.st_mode,
        before.st_uid,
        before.st_gid,
        before.st_mtime_ns,
        before.st_ctime_ns,
    )
    assert kept.read_text() == "kept"
    assert sorted(path.name for path in kept.parent.iterdir()) == ["home", "kept", "project"]
    if result.refused is None:
        assert result.output == "done\n", result


@pytest.mark.parametrize(
    ("without", "promise"),
    [
        (("seccomp",), "system calls"),
        (("landlock", "mount"), "files from being read"),
        (("landlock", "pid"), "other processes"),
        ((*NAMESPACES, "landlock"), "write protection"),
        ((*NAMESPACES, "landlock", "seccomp"), "a cut network"),
    ],
)
def test_what_nothing_can_keep_is_refused_by_name(attacker: Attacker, without: tuple[str, ...], promise: str) -> None:
    result = attacker("print('ran')", without)
    assert promise in (result.refused or ""), result


@pytest.mark.parametrize(
    ("where", "without"),
    [
        ("anonymous", ()),
        ("/dev/shm/block", ()),
        ("home", ()),
        ("working folder", ()),
        ("deleted", ()),
        ("zeros", ("landlock",)),
        ("home", ("landlock",)),
        ("zeros", NAMESPACES),
        ("deleted", NAMESPACES),
    ],
)
def test_memory_that_is_shared_or_written_counts(attacker: Attacker, where: str, without: tuple[str, ...]) -> None:
    source = f"""
import mmap, os
where, block = {where!r}, 16 << 20
kept = []
def take(n):
    if where == "anonymous":
        kept.append(mmap.mmap(-1, block)); kept[-1].write(b"x" * block)
    elif where == "zeros":
        kept.append(mmap.mmap(os.open("/dev/zero", os.O_RDWR), block)); kept[-1].write(b"x" * block)
    else:
        path = {{"home": os.environ["HOME"] + "/block", "working folder": "block",
                 "deleted": os.environ["HOME"] + "/block"}}.get(where, where) + str(n)
        with open(path, "wb") as file: file.write(b"x" * block)
        if where == "deleted": kept.append(os.open(path, os.O_RDONLY)); os.remove(path)
for n in range(96):
    take(n)
    print((n + 1) * 16, flush=True)
print("ESCAPED with 1536 MiB")
"""
    result = attacker(source, without, memory_bytes=256 << 20)
    if result.refused is not None and attacker("pass").missing:
        pytest.skip("this machine lacks what would be in that one's place")
    assert result.refused is None
    assert "ESCAPED" not in result.output
    reached = [int(line) for line in result.output.splitlines() if line.isdigit()]
    assert not reached or max(reached) <= 640, result


def test_a_fork_bomb_is_counted_and_ends_with_everything_it_started(attacker: Attacker) -> None:
    marker = f"kopt-bomb-{os.getpid()}"
    source = f"""
import os
for number in range(1, 65):
    try: __import__("signal").signal(number, __import__("signal").SIG_IGN)
    except (OSError, ValueError): pass
while True:  # {marker}
    try: os.fork()
    except OSError: pass
"""
    result = attacker(source, wall_s=5, processes=40)
    assert result.limit_hit in ("processes", "wall")
    assert not [pid for pid in Path("/proc").iterdir() if pid.name.isdigit() and marker in _command_line(pid)]


@pytest.mark.parametrize("without", [(), NAMESPACES], ids=["all", "no namespaces"])
def test_processes_and_threads_are_limited_whoever_asks(attacker: Attacker, without: tuple[str, ...]) -> None:
    source = """
import threading, time
try:
    for number in range(1000): threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
except RuntimeError: pass
print(number, flush=True)
__import__("os")._exit(0)
"""
    result = attacker(source, without, processes=10)
    assert 20 < int(result.output) <= 80


def _command_line(process: Path) -> str:
    try:
        return (process / "cmdline").read_text(errors="replace")
    except OSError:
        return ""
