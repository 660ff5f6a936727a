"""``kopt train … --from-cluster``: what a cluster has measured, into the predictor's table, and what was left out."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from kopt.cli.errors import Refused
from kopt.cli.open_cluster import open_cluster
from kopt.cli.output import printable
from kopt.cli.progress import print_status, step
from kopt.core.settings import Settings

if TYPE_CHECKING:
    from kopt.cluster.client.api import Kube

Row = TypeVar("Row")
Answer = TypeVar("Answer")
_NAMED = 5
FOLDER = "measured"
"""In the home: a folder for each predictor, with its table of what clusters have measured."""


@dataclass
class Imported(Generic[Row]):
    """Rows for a table, and why objects gave none: (object, reason)."""

    rows: list[Row] = field(default_factory=list)
    excluded: list[tuple[str, str]] = field(default_factory=list)

    def leave_out(self, name: str, reason: object) -> None:
        self.excluded.append((name, printable(" ".join(str(reason).split()))[:300]))

    def __iadd__(self, other: "Imported[Row]") -> "Imported[Row]":
        self.rows += other.rows
        self.excluded += other.excluded
        return self

    def remarks(self) -> Iterable[str]:
        """A line for each reason, with the first objects that it is about."""
        names: defaultdict[str, list[str]] = defaultdict(list)
        for name, reason in self.excluded:
            names[reason].append(printable(name)[:200])
        for reason, of in sorted(names.items(), key=lambda item: -len(item[1])):
            more = f" and {len(of) - _NAMED:,} more" if len(of) > _NAMED else ""
            yield f"left out, {reason}: {', '.join(of[:_NAMED])}{more}"


def read_cluster(kubeconfig: Path | None, read: "Callable[[Kube], Awaitable[Answer]]") -> Answer:
    """What ``read`` makes of a cluster. Raises Refused where it cannot be read."""

    async def ask() -> Answer:
        async with open_cluster(kubeconfig) as kube:
            return await read(kube)

    with step("reading what the cluster has measured"):
        return asyncio.run(ask())


def table_of(settings: Settings, predictor: str, name: str) -> Path:
    """Where the rows of clusters are kept, from one import to the next."""
    path = settings.home / FOLDER / predictor / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise Refused(f"{path.parent} cannot be made ({error.strerror})") from error
    return path


def report(imported: Imported[Row], path: Path, kept: int, of: str) -> None:
    """What was learned, on standard error. Raises Refused where there is nothing to learn from."""
    for remark in imported.remarks():
        print_status(remark)
    if not kept:
        raise Refused(f"nothing is trained, as the cluster has no {of} that can be learned from")
    print_status(f"{len(imported.rows):,} rows from the cluster, {kept:,} with those of before, are in {path}")
