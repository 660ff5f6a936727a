"""``kopt dashboards``: the Grafana dashboards that come with kopt."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from kopt.cli.errors import Refused, unknown_name
from kopt.cli.options import Output
from kopt.cli.output import Answer, Format, column, show
from kopt.core.dashboards.catalogue import dashboards, document

app = typer.Typer(no_args_is_help=True, help="Grafana dashboards for GPU clusters and for kopt itself.")


@dataclass(frozen=True)
class DashboardRow:
    """A dashboard."""

    name: str = column("dashboard")
    panels: int = column("panels", drop=1)
    description: str = column("about")
    variables: list[str] = column("variables", drop=2)
    uid: str = column("uid", wide=True)


@dataclass(frozen=True)
class FileRow:
    """A file that was written."""

    dashboard: str = column("dashboard")
    path: str = column("file")


def _completed(incomplete: str) -> list[str]:
    return [dashboard.name for dashboard in dashboards() if dashboard.name.startswith(incomplete.lower())]


@app.command("list")
def list_dashboards(output: Output = Format.TABLE) -> None:
    """List the dashboards.

    Examples:

        kopt dashboards list
    """
    rows = [
        DashboardRow(each.name, len(each.panels), each.description, [item.name for item in each.variables], each.uid)
        for each in dashboards()
    ]
    hint = (
        "Panels of GPUs read series that the rules record: kopt alerts rules, or the chart's monitoring.rules.enabled"
    )
    show(Answer("dashboards", rows, remarks=[hint]), output)


@app.command("write")
def write(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Made where it is not there.")],
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="NAME", help="This dashboard; repeatable.", autocompletion=_completed),
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Write the dashboards as JSON, for the import of Grafana or a folder that it provisions from.

    The chart installs the same with monitoring.dashboards.enabled, for a Grafana whose sidecar collects ConfigMaps. A
    file of an earlier version is replaced.

    Examples:

        kopt dashboards write /var/lib/grafana/dashboards/kopt

        kopt dashboards write . --only cluster --only cost
    """
    names = [dashboard.name for dashboard in dashboards()]
    for name in only or ():
        if name not in names:
            unknown_name("dashboard", name, names, "--only", "kopt dashboards list names them")
    rows = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            if not only or name in only:
                path = folder / f"kopt-{name}.json"
                path.write_text(document(name), encoding="utf-8")
                rows.append(FileRow(name, str(path)))
    except OSError as error:
        raise Refused(f"the dashboards cannot be written: {error}") from error
    show(Answer("files", rows), output)
