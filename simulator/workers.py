"""Worker processes of a study, which Ctrl-C ends without a word."""

import contextlib
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor


@contextlib.contextmanager
def worker_processes(count: int) -> Iterator[ProcessPoolExecutor]:
    """A pool. Where the block ends with an error or Ctrl-C, what has not begun is not begun any more."""
    pool = ProcessPoolExecutor(count, initializer=_end_at_once)
    try:
        yield pool
    except BaseException:
        # Python waits for the pool's thread at its end anyway, but writes into a pipe that this thread may just have
        # closed (`_python_exit`), and prints a traceback about it.
        pool.shutdown(wait=True, cancel_futures=True)
        raise
    pool.shutdown()


def _end_at_once() -> None:
    """A terminal sends Ctrl-C to every process of the command: Python would print a traceback in each."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
