"""One entrance for all data in files: demand tables and public traces, told apart by their content."""

from pathlib import Path

from kopt.data.demand.files import read_demand
from kopt.data.demand.table import DemandSeries
from kopt.data.demand.traces import is_trace, read_trace


def load(source: Path | str, *, unit: str | None = None, step_s: int | None = None) -> list[DemandSeries]:
    """Series of a folder or file: ``demand.parquet`` or CSV with ``SERIES.csv``, or an Azure LLM, BurstGPT or
    ServeGen trace.

    ``unit`` and ``step_s`` as in ``files.read_demand``; a trace counts requests, in buckets of ``step_s``.

    Raises:
        DemandDataError: whatever is wrong with the data, naming series and row.
    """
    if not is_trace(source):
        return read_demand(source, unit=unit, step_s=step_s)
    return read_trace(source, step_s=step_s) if step_s else read_trace(source)
