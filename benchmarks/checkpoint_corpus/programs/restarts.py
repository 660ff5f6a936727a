"""Runs programs one after the other into one log, as a job does that is killed and started again.

restarts.py [kill:N | kill@SECONDS | fails] PROGRAM WORDS... ::: [...] PROGRAM WORDS...

kill:N ends the program while its N-th new checkpoint is being written; `fails` expects it to end with an error.
"""

import ctypes
import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

SLOW, FAILURES = Path(os.environ["KOPT_SLOW_FOLDER"]), Path(os.environ["KOPT_SLOW_FAILURES"])


def kill(process):
    # Told first: what is open now will not be whole.
    with FAILURES.open("a") as told:
        told.write(f"{time.monotonic():.6f} *\n")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def kill_in_write(process, number):
    there, begun = set(SLOW.iterdir()), 0
    while process.poll() is None:
        new = set(SLOW.iterdir()) - there
        there |= new
        begun += bool(new)
        if begun == number:
            time.sleep(0.05)
            return kill(process)
        time.sleep(0.003)
    raise SystemExit(f"ended before write {number}")


def end_with_me():
    """PR_SET_PDEATHSIG: whoever records ends this program, and what it has started has a group of its own."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def run(words):
    options = list(itertools.takewhile(lambda word: not word.endswith(".py"), words))
    program = Path(__file__).parent / words[len(options)]
    command = [sys.executable, str(program), *words[len(options) + 1 :]]
    process = subprocess.Popen(command, start_new_session=True, preexec_fn=end_with_me)
    for option in options:
        if option.startswith("kill:"):
            return kill_in_write(process, int(option[5:]))
        if option.startswith("kill@"):
            time.sleep(float(option[5:]))
            return kill(process)
    if (process.wait() != 0) != ("fails" in options):
        raise SystemExit(f"{words} ended with {process.returncode}")
    return None


def main():
    words = sys.argv[1:]
    while words:
        one = list(itertools.takewhile(lambda word: word != ":::", words))
        run(one)
        words = words[len(one) + 1 :]


if __name__ == "__main__":
    main()
