"""Where the work of a run is done: Ray tasks, or this process.

Both take functions of modules that a worker can import, call them with a folder-like argument each and yield results
as they are ready. Interrupting the loop cancels what is running.
"""

import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from kopt.core.settings import Settings
from kopt.training.steps import TrainingError

_ATTEMPTS = 3
"""Starts of a local Ray: on a busy machine the first may take longer than it waits."""
Item = TypeVar("Item")
Result = TypeVar("Result")


class Tasks(Protocol):
    """Runs a function over items, some at a time. ``cpus`` is the thread grant of each call."""

    cpus: int

    def map(
        self, function: Callable[[Any, Item, int], Result], shared: Any, items: Sequence[Item]
    ) -> Iterator[tuple[Item, Result]]:
        """``function(shared, item, cpus)`` for every item, as they finish."""
        ...


class HereTasks:
    """One call after another in this process."""

    cpus = 1

    def map(
        self, function: Callable[[Any, Item, int], Result], shared: Any, items: Sequence[Item]
    ) -> Iterator[tuple[Item, Result]]:
        for item in items:
            yield item, function(shared, item, self.cpus)


class RayTasks:
    """Ray remote tasks with one CPU each.

    LightGBM with more threads than its grant is an order of magnitude slower under load, so the grant is passed on.
    ``shared`` is stored once in the object store and mapped, not copied, by the workers.
    """

    cpus = 1

    def __init__(self, settings: Settings, *, store_bytes: int = 768 * 2**20, cpus: int | None = None) -> None:
        # Ray's socket names must stay below 107 characters, so its folder cannot lie below any home.
        self._scratch = tempfile.mkdtemp(prefix="kopt-ray-")
        try:
            self._own = start_ray(settings, Path(self._scratch), store_bytes=store_bytes, cpus=cpus)
        except TrainingError:
            shutil.rmtree(self._scratch, ignore_errors=True)
            raise

    def map(
        self, function: Callable[[Any, Item, int], Result], shared: Any, items: Sequence[Item]
    ) -> Iterator[tuple[Item, Result]]:
        import ray

        threads = {name: str(self.cpus) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
        remote = ray.remote(num_cpus=self.cpus, max_retries=1, runtime_env={"env_vars": threads})(_call)
        stored = ray.put(shared)
        waiting = {remote.remote(function, stored, item, self.cpus): item for item in items}
        try:
            while waiting:
                (ready,), _ = ray.wait(list(waiting), num_returns=1)
                item = waiting.pop(ready)
                yield item, _result(ready)
        finally:
            for left in waiting:
                ray.cancel(left, force=True)

    def close(self) -> None:
        """Ends Ray where this object started it; a cluster that was joined goes on."""
        import ray

        if self._own:
            ray.shutdown()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def __enter__(self) -> "RayTasks":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _result(ready: Any) -> Any:
    import ray

    try:
        return ray.get(ready)
    except ray.exceptions.RayTaskError as error:
        raise error.cause if isinstance(error.cause, Exception) else TrainingError(str(error)) from None
    except ray.exceptions.RayError as error:
        text = str(error).split("\n")[0]
        raise TrainingError(f"a training task was lost: {text}; what was finished is kept, train again") from error


def _call(function: Callable[[Any, Item, int], Result], shared: Any, item: Item, cpus: int) -> Result:
    return function(shared, item, cpus)


def start_ray(settings: Settings, scratch: Path, *, store_bytes: int, cpus: int | None = None) -> bool:
    """Join the cluster of the settings, or start a local one on loopback; False when this process has one already."""
    os.environ.setdefault("RAY_AUTH_MODE", "token" if settings.ray_address else "disabled")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    if ray.is_initialized():
        return False
    ours = signal.getsignal(signal.SIGTERM)
    if settings.ray_address:
        ray.init(address=settings.ray_address, log_to_driver=False, logging_level="error")
    else:
        _start_local(scratch, store_bytes, cpus or os.cpu_count() or 1)
    # Ray's own handler aborts the process, before a run is closed and temporary folders are gone.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, ours)
    return True


def _start_local(scratch: Path, store_bytes: int, cpus: int) -> None:
    import ray

    for attempt in range(_ATTEMPTS):
        try:
            ray.init(
                address="local",
                num_cpus=cpus,
                object_store_memory=store_bytes,
                include_dashboard=False,
                log_to_driver=False,
                logging_level="error",
                _node_ip_address="127.0.0.1",
                _temp_dir=str(scratch / str(attempt)),
            )
        except Exception as error:  # noqa: BLE001  Ray gives up after 30 s with a bare Exception
            ray.shutdown()
            failure = error
        else:
            return
    raise TrainingError(f"Ray did not start ({failure}); the machine may be too busy or short of memory, train again")
