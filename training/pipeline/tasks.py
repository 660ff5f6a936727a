"""Where the work of a run is done: Ray tasks, or this process.

Both take functions of modules that a worker can import, call them with a folder-like argument each and yield results
as they are ready. Interrupting the loop cancels what is running.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from kopt.core.settings import Settings
from kopt.serving.base import local_ray
from kopt.serving.base.scratch import make_scratch, remove_scratch
from kopt.training.pipeline.steps import TrainingError

SLOW_S = 15.0
"""A start of Ray takes three to ten seconds on a quiet machine."""
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


@contextlib.contextmanager
def _reported_if_slow(on_slow: Callable[[str], None]) -> Iterator[None]:
    """Says every ``SLOW_S`` that the block goes on, and for how long it has."""
    begun_s, over = time.monotonic(), threading.Event()

    def report() -> None:
        while not over.wait(SLOW_S):
            elapsed_s = time.monotonic() - begun_s
            on_slow(f"Ray's own processes have been starting for {elapsed_s:.0f} s; this machine is busy or slow")

    reporter = threading.Thread(target=report, daemon=True)
    reporter.start()
    try:
        yield
    finally:
        over.set()
        reporter.join()


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

    def __init__(
        self,
        settings: Settings,
        *,
        store_bytes: int = 768 * 2**20,
        cpus: int | None = None,
        on_slow: Callable[[str], None] = lambda _: None,
    ) -> None:
        """``cpus`` are those of a Ray of our own, by default all that this process may use; ``on_slow`` gets a sentence
        while Ray takes long to start; it is waited for. Raises TrainingError."""
        self._scratch = make_scratch()
        options = {"object_store_memory": store_bytes} | ({} if cpus is None else {"num_cpus": cpus})
        try:
            with _reported_if_slow(on_slow):
                self._own = local_ray.start(settings, self._scratch, **options)
        except local_ray.RayError as error:
            remove_scratch(self._scratch)
            raise TrainingError(str(error)) from error

    def map(
        self, function: Callable[[Any, Item, int], Result], shared: Any, items: Sequence[Item]
    ) -> Iterator[tuple[Item, Result]]:
        import ray

        threads = {name: str(self.cpus) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
        remote = ray.remote(num_cpus=self.cpus, max_retries=1, runtime_env={"env_vars": threads})(_call)
        stored = ray.put(shared)
        pending = {remote.remote(function, stored, item, self.cpus): item for item in items}
        try:
            while pending:
                (ready,), _ = ray.wait(list(pending), num_returns=1)
                item = pending.pop(ready)
                yield item, _result(ready)
        finally:
            for remaining in pending:
                ray.cancel(remaining, force=True)

    def close(self) -> None:
        """Ends Ray where this object started it; a cluster that was joined goes on."""
        import ray

        if self._own:
            ray.shutdown()
        remove_scratch(self._scratch)

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
