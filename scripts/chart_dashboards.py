"""Writes the Grafana dashboards of the catalogue into the chart, with Grafana's own builders. A test holds the files to
the catalogue; the package links to them, so that ``kopt dashboards`` needs no builders."""

from pathlib import Path
from typing import Any

from grafana_foundation_sdk.builders import bargauge, common, prometheus, stat, timeseries
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    BigValueGraphMode,
    LegendDisplayMode,
    LegendPlacement,
    StackingMode,
    TooltipDisplayMode,
    VizOrientation,
)
from grafana_foundation_sdk.models.dashboard import (
    DataSourceRef,
    VariableOption,
    VariableRefresh,
)

from kopt.core.dashboards.catalogue import DATASOURCE, Dashboard, Panel, PanelKind, Variable, dashboards

FOLDER = Path(__file__).resolve().parents[1] / "deploy" / "chart" / "files" / "dashboards"
_PROMETHEUS = DataSourceRef(type_val="prometheus", uid=f"${{{DATASOURCE}}}")
_WIDTH = {PanelKind.STAT: 6, PanelKind.LINES: 12, PanelKind.BARS: 12}
_HEIGHT = {PanelKind.STAT: 5, PanelKind.LINES: 8, PanelKind.BARS: 8}
_FEWEST_CALCULATIONS = ["lastNotNull"]


def texts() -> dict[str, str]:
    """The content of each file, by name."""
    return {f"{dashboard.name}.json": text_of(dashboard) for dashboard in dashboards()}


def text_of(dashboard: Dashboard) -> str:
    encoded: str = JSONEncoder(sort_keys=True, indent=1, ensure_ascii=False).encode(_built(dashboard))
    return encoded + "\n"


def _built(dashboard: Dashboard) -> Any:
    builder = (
        builders.Dashboard(dashboard.title)
        .uid(dashboard.uid)
        .description(dashboard.description)
        .tags(["kopt", "gpu"])
        .time("now-6h", "now")
        .refresh("1m")
        .timezone("browser")
        .readonly()
        .with_variable(builders.DatasourceVariable(DATASOURCE).label("Prometheus").type("prometheus"))
    )
    for variable in dashboard.variables:
        builder = builder.with_variable(_variable(variable))
    for panel in dashboard.panels:
        if panel.row:
            builder = builder.with_row(builders.Row(panel.row))
        builder = builder.with_panel(_panel(panel))
    built = builder.build()
    for number, item in enumerate(built.panels or (), start=1):
        # Links to single panels name them by number.
        item.id_val = number
    return built


def _variable(variable: Variable) -> Any:
    if not variable.values:
        return builders.TextBoxVariable(variable.name).label(variable.label).default_value(variable.text)
    return (
        builders.QueryVariable(variable.name)
        .label(variable.label)
        .query(variable.values)
        .datasource(_PROMETHEUS)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(VariableOption(selected=True, text="All", value="$__all"))
    )


def _panel(panel: Panel) -> Any:
    builder: Any
    match panel.kind:
        case PanelKind.STAT:
            reduced = common.ReduceDataOptions().calcs(_FEWEST_CALCULATIONS)
            builder = stat.Panel().reduce_options(reduced).graph_mode(BigValueGraphMode.NONE)
        case PanelKind.BARS:
            reduced = common.ReduceDataOptions().calcs(_FEWEST_CALCULATIONS)
            builder = bargauge.Panel().reduce_options(reduced).orientation(VizOrientation.HORIZONTAL)
        case PanelKind.LINES:
            builder = _lines(panel)
    builder = (
        builder.title(panel.title)
        .description(panel.description)
        .unit(panel.unit)
        .datasource(_PROMETHEUS)
        .span(_WIDTH[panel.kind])
        .height(_HEIGHT[panel.kind])
    )
    for letter, query in zip("ABCDEFGH", panel.queries, strict=False):
        target = prometheus.Dataquery().ref_id(letter).expr(query.expr).legend_format(query.legend)
        builder = builder.with_target(target.range() if panel.kind is PanelKind.LINES else target.instant())
    if panel.unit == "percentunit":
        builder = builder.min(0)
    return builder


def _lines(panel: Panel) -> Any:
    legend = (
        common.VizLegendOptions()
        .display_mode(LegendDisplayMode.TABLE)
        .placement(LegendPlacement.BOTTOM)
        .show_legend(True)
        .calcs(["lastNotNull", "max"])
    )
    builder = timeseries.Panel().legend(legend).fill_opacity(30.0 if panel.stacked else 8.0).line_width(1.5)
    builder = builder.tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
    if panel.stacked:
        builder = builder.stacking(common.StackingConfig().mode(StackingMode.NORMAL).group("A"))
    return builder


def write() -> None:
    """Write all files; those of dashboards that are no more are deleted."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    files = texts()
    for path in FOLDER.glob("*.json"):
        if path.name not in files:
            path.unlink()
    for name, text in files.items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
