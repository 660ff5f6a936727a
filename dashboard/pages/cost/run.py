"""What a row by workload cost by epoch, of what its reader may see: for the page, and for programs."""

import asyncio
from dataclasses import replace

from kopt.dashboard.data.feed import FAILURES, sentence
from kopt.dashboard.pages.cost.data import CostState
from kopt.dashboard.pages.cost.query import CostRequest
from kopt.formats.joblog.epochs import Epoch
from kopt.policies.cost.attribution import By, Part
from kopt.policies.cost.epochs import distinct_epochs
from kopt.policies.cost.report import CostQuestion
from kopt.policies.cost.run import NO_EPOCHS, RunCost, cost_of_run, job_of, workload_named


async def run_of(state: CostState, question: CostRequest, name: str) -> RunCost:
    """The run of this name, in full or its end. An endpoint that does not answer is a remark.

    Raises RunError, HiddenError and DatabaseError.
    """
    costs = state.costs
    assert costs is not None
    within = replace(state.within_rights(question.question, question.namespace), by=By.WORKLOAD, label="")
    workload = await asyncio.to_thread(_named, state, within, name)
    events = await asyncio.to_thread(costs.events, within, workload)
    epochs, no_epochs = await _epochs(state, job_of(workload))
    return cost_of_run(workload, events, epochs, no_epochs)


def _named(state: CostState, question: CostQuestion, name: str) -> str:
    """Of names that the reader may see alone: an error lists some."""
    assert state.costs is not None
    rows = state.costs.report(replace(question, offset=0, limit=0)).rows
    return workload_named((row.name for row in rows if row.part is Part.PODS), name)


async def _epochs(state: CostState, job: str) -> tuple[list[Epoch], str]:
    """And what to say where there are none."""
    if state.epochs_of is None:
        return [], NO_EPOCHS
    try:
        epochs = distinct_epochs(await state.epochs_of(job))
    except FAILURES as error:
        return [], f"The endpoint does not say which epochs it has read: {sentence(error)}"
    return epochs, f"The endpoint has read no epoch in the log of {job}, so only the whole run is priced."
