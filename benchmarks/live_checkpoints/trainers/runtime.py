"""Runs a command and keeps its output as a container runtime does (CRI): runtime.py LOGS COMMAND….

SIGTERM kills everything at once: what is measured is a kill at that moment, not what a program does about it.
"""

import datetime
import os
import signal
import subprocess
import sys
from pathlib import Path

LONGEST = 16 << 10


def main() -> int:
    logs, command = Path(sys.argv[1]), sys.argv[2:]
    signal.signal(signal.SIGTERM, lambda *_: os.killpg(0, signal.SIGKILL))
    pod = "_".join(os.environ[name] for name in ("POD_NAMESPACE", "POD_NAME", "POD_UID"))
    path = logs / pod / "trainer" / "0.log"
    path.parent.mkdir(parents=True)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    with path.open("ab", buffering=0) as log:
        while piece := process.stdout.readline(LONGEST):
            now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            kind = "F" if piece.endswith(b"\n") else "P"
            log.write(f"{now} stdout {kind} ".encode() + piece.removesuffix(b"\n") + b"\n")
            sys.stdout.buffer.write(piece)
            sys.stdout.flush()
    return process.wait()


if __name__ == "__main__":
    sys.exit(main())
