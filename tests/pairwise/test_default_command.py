"""The command of a test that brings none, with a real mpirun and a real sshd; only the benchmark itself is played."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kopt.controllers.pairwise.default_command import KEY_FOLDER, SCRIPT
from kopt.formats import topology

pytestmark = [pytest.mark.services, pytest.mark.slow]
PROGRAMS = ("mpirun", "ssh", "ssh-keygen")


def test_two_ranks_find_each_other_and_the_log_is_that_of_nccl_tests(tmp_path: Path) -> None:
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing or not (shutil.which("sshd") or Path("/usr/sbin/sshd").exists()):
        pytest.skip(f"needs {', '.join(missing) or 'sshd'} (Debian packages openmpi-bin and openssh-server)")
    from controlplane.processes import free_port

    rendered = Path(__file__).with_name("rendered.py")
    program = tmp_path / "all_reduce_perf"
    program.write_text(
        f"#!{sys.executable}\n"
        "import os, sys\n"
        f"sys.path.insert(0, {str(rendered.parent)!r})\n"
        "from rendered import log\n"
        "ours = int(os.environ['OMPI_COMM_WORLD_RANK']), int(os.environ['OMPI_COMM_WORLD_SIZE'])\n"
        "open(os.environ['NCCL_RANKS'] + f'/{ours[0]}-of-{ours[1]}', 'w').write(' '.join(sys.argv[1:]))\n"
        "if ours[0] == 0: print(log(('127.0.0.2', '127.0.0.3'), 2), end='')\n"
    )
    program.chmod(0o755)
    key = tmp_path / "secret" / "ssh-privatekey"
    key.parent.mkdir()
    subprocess.run(["ssh-keygen", "-q", "-t", "rsa", "-m", "PEM", "-N", "", "-f", str(key)], check=True)
    Path("/run/sshd").mkdir(exist_ok=True)
    script = SCRIPT.replace(KEY_FOLDER, str(key.parent))
    # Both ranks are on one machine here: rank 1 listens where ssh looks, rank 0 does not need to.
    ranks = tmp_path / "ranks"
    ranks.mkdir()
    env = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "KOPT_PEERS": "127.0.0.2,127.0.0.3",
        "KOPT_GPUS_PER_NODE": "2",
        "KOPT_COLLECTIVES": "all_reduce",
        "KOPT_MIN_BYTES": "8",
        "KOPT_MAX_BYTES": "1024",
        "KOPT_SSH_PORT": str(free_port()),
        "NCCL_RANKS": str(ranks),
        "TMPDIR": str(tmp_path),
    }
    server = subprocess.Popen(["sh", "-c", script], env={**env, "KOPT_RANK": "1"}, stderr=subprocess.PIPE)
    try:
        alone = script.replace('"$server" -e -f "$folder/sshd_config"\n', "")
        done = subprocess.run(
            ["sh", "-c", alone], env={**env, "KOPT_RANK": "0"}, capture_output=True, text=True, timeout=120, check=False
        )
    finally:
        server.terminate()
        server.wait()
    assert done.returncode == 0, done.stderr
    assert sorted(one.name for one in ranks.iterdir()) == [f"{n}-of-4" for n in range(4)]
    assert (ranks / "0-of-4").read_text() == "-b 8 -e 1024 -f 2 -g 1 -n 20"
    found = topology.parse(done.stdout)
    assert [(run.collective, len(run.ranks), run.hosts) for run in found.runs] == [("all_reduce", 4, 2)]  # type: ignore[union-attr]
