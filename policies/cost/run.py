"""What one training cost: its charges joined with the epochs of its log, and what is to be said beside them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kopt.formats.joblog.epochs import Epoch
from kopt.policies.cost.budgets import stamp
from kopt.policies.cost.epochs import EpochCost, epoch_costs
from kopt.policies.cost.runs import SHORT, Run, RunError


@dataclass(frozen=True)
class RunCost:
    """``workload`` is its name in full; ``whole`` also has the time before, between and after ``epochs``. ``uid`` is
    that of what made its pods, and ``runs`` those of all runs of this name, by their begin; empty ones are not known.
    """

    workload: str
    epochs: tuple[EpochCost, ...]
    whole: EpochCost
    remarks: tuple[str, ...] = ()
    uid: str = ""
    runs: tuple[str, ...] = ("",)

    def _repr_html_(self) -> str:
        """A table for notebooks; names are escaped."""
        from kopt.policies.cost.notebook import run_table

        return run_table(self)

    def to_dict(self) -> dict[str, Any]:
        """As ``GET /v1/cost/run`` has it: amounts are millionths, and the last of ``epochs`` is the whole run."""
        return {
            "workload": self.workload,
            "run": self.uid,
            "runs": list(self.runs),
            "currency": self.whole.currency,
            "epochs": [_document(item) for item in (*self.epochs, self.whole)],
            "remarks": list(self.remarks),
        }


NO_EPOCHS = "The log names no epoch with a date and a time, so only the whole run is priced."


def cost_of_run(
    workload: str, run: Run, runs: Sequence[Run], epochs: Sequence[Epoch], no_epochs: str = NO_EPOCHS
) -> RunCost:
    """``runs`` are all of the workload's; ``no_epochs`` is remarked where there are none. Raises RunError."""
    try:
        *rows, whole = epoch_costs(run.events, epochs)
    except ValueError as error:
        raise RunError(str(error)) from error
    remarks = (*_of_others(run, runs), *_remarks(rows, whole, no_epochs))
    return RunCost(workload, tuple(rows), whole, remarks, run.uid, tuple(each.uid for each in runs))


def workload_named(names: Iterable[str], name: str) -> str:
    """The only one of this name, in full or its end. Raises RunError with those that there are."""
    listed = sorted(set(names))
    matching = [each for each in listed if each == name] or [each for each in listed if each.endswith(f"/{name}")]
    if len(matching) != 1:
        there = ", ".join(matching or listed[:8]) or "none"
        raise RunError(
            f"{'several workloads are' if matching else 'no workload is'} called {name!r}; there are {there}"
        )
    return matching[0]


def job_of(workload: str) -> str:
    """``namespace/name`` of the job whose log the log agent sends, of ``namespace/kind/name``."""
    namespace, _, rest = workload.partition("/")
    return f"{namespace}/{rest.rpartition('/')[2]}"


def _of_others(run: Run, runs: Sequence[Run]) -> list[str]:
    if len(runs) < 2:
        return []
    others = ", ".join(
        f"{each.uid[:SHORT] or 'of unknown UID'} ({stamp(each.start_ms)} to {stamp(each.end_ms)})"
        for each in runs
        if each is not run
    )
    name = run.uid[:SHORT] or "of unknown UID"
    return [f"{len(runs)} runs have this name in this time. This is {name}; the others: {others}."]


def _remarks(rows: Sequence[EpochCost], whole: EpochCost, no_epochs: str) -> list[str]:
    remarks = [] if rows else [no_epochs]
    if rows and not any(item.gpu_hours for item in rows):
        remarks.append("No pod of the run was charged while the epochs of the log went on: is it the log of this run?")
    if not whole.steps:
        remarks.append("The log counts no steps (step k/N) within epochs.")
    if not any(item.samples is not None or item.tokens is not None for item in rows):
        remarks.append("The log says no samples/s or tokens/s, so what one unit of money bought is not known.")
    if whole.micro is None:
        remarks.append("A part of it has no price: name one in a price book (--prices), or with --price.")
    return remarks


def _document(item: EpochCost) -> dict[str, Any]:
    return {
        "epoch": "all" if item.epoch is None else str(item.epoch),
        "from": stamp(item.start_ms),
        "until": stamp(item.end_ms),
        "from_ms": item.start_ms,
        "until_ms": item.end_ms,
        "gpu_hours": item.gpu_hours,
        "micro": item.micro,
        "steps": item.steps,
        "samples": item.samples,
        "tokens": item.tokens,
        "micro_per_1000_steps": item.micro_per_1000_steps,
        "samples_per_unit": item.samples_per_unit,
        "tokens_per_unit": item.tokens_per_unit,
    }
