"""What a row by workload cost by epoch, of what its reader may see: for the page, and for programs."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from kopt.dashboard.data.feed import FAILURES, sentence
from kopt.dashboard.pages.cost.data import CostState
from kopt.dashboard.pages.cost.query import CostRequest
from kopt.formats.joblog.epochs import Epoch
from kopt.policies.cost.attribution import By, Part
from kopt.policies.cost.report import CostQuestion
from kopt.policies.cost.run import NO_EPOCHS, RunCost, cost_of_run, job_of, workload_named
from kopt.policies.cost.runs import Run, epochs_of_run, run_named, runs_of


async def run_of(state: CostState, question: CostRequest, name: str, uid: str = "") -> RunCost:
    """The latest run of this name, in full or its end, or the one of a UID. An endpoint that is away is a remark.

    Raises RunError, HiddenError and DatabaseError.
    """
    costs = state.costs
    assert costs is not None
    within = replace(state.within_rights(question.question, question.namespace), by=By.WORKLOAD, label="")
    workload = await asyncio.to_thread(_named, state, within, name)
    runs = runs_of(await asyncio.to_thread(costs.events, within, workload))
    run = run_named(runs, uid)
    epochs, no_epochs = await _epochs(state, job_of(workload), run, runs)
    return cost_of_run(workload, run, runs, epochs, no_epochs)


def _named(state: CostState, question: CostQuestion, name: str) -> str:
    """Of names that the reader may see alone: an error lists some."""
    assert state.costs is not None
    rows = state.costs.report(replace(question, offset=0, limit=0)).rows
    return workload_named((row.name for row in rows if row.part is Part.PODS), name)


async def _epochs(state: CostState, job: str, run: Run, runs: Sequence[Run]) -> tuple[list[Epoch], str]:
    """And what to say where there are none."""
    if state.epochs_of is None:
        return [], NO_EPOCHS
    try:
        epochs = epochs_of_run(run, runs, await state.epochs_of(job))
    except FAILURES as error:
        return [], f"The endpoint does not say which epochs it has read: {sentence(error)}"
    return epochs, f"The endpoint has read no epoch in the log of this run of {job}, so only the whole run is priced."
