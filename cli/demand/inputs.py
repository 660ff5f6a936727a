"""INPUT of the demand verbs and of training: a file or folder, a public trace, or a Prometheus address."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kopt.cli.errors import Refused, usage_error
from kopt.cli.options import seconds
from kopt.cli.progress import bar, step

if TYPE_CHECKING:
    from kopt.data.demand.table import DemandSeries


QUERY_NEEDED = (
    "Prometheus needs a query that gives demand per step, for example "
    "--query 'sum by (service) (increase(requests_total[$step]))'"
)


@dataclass(frozen=True)
class Source:
    """Where demand comes from, as the options say it; all but ``where`` and ``unit`` are for Prometheus."""

    where: str
    query: str = ""
    label: str = "service"
    since: str = "30d"
    step: str = "5m"
    unit: str | None = None

    @property
    def is_prometheus(self) -> bool:
        return self.where.startswith(("http://", "https://"))


def read(source: Source) -> "list[DemandSeries]":
    """All series of the source. Raises Refused or DemandDataError; wrong usage ends with status 2."""
    if source.is_prometheus:
        return _from_prometheus(source)
    if source.query:
        usage_error("--query goes with a Prometheus address (http://…) as input", "--query")
    path = readable(Path(source.where))
    from kopt.data.demand.load import load

    with step(f"reading {path}"):
        return load(path, unit=source.unit)


def readable(path: Path) -> Path:
    """The path, if something that can be read lies there. Raises Refused."""
    try:
        path.stat()
    except FileNotFoundError:
        raise Refused(f"{path}: there is no such file or folder") from None
    if not path.is_file() and not path.is_dir():
        raise Refused(f"{path} is neither a file nor a folder")
    if path.is_dir() and not any(path.iterdir()):
        raise Refused(f"{path} is an empty folder; it should hold demand.parquet or demand.csv, or a trace")
    return path


def _from_prometheus(source: Source) -> "list[DemandSeries]":
    if not source.query:
        usage_error(QUERY_NEEDED, "--query")
    since_s, step_s = seconds(source.since, "--since"), seconds(source.step, "--step")
    from kopt.data.demand.prometheus import read_demand

    with bar("asking Prometheus") as advance:
        return read_demand(
            source.where,
            source.query,
            since_s,
            step_s,
            label=source.label,
            unit=source.unit or "requests",
            progress=advance,
        )
