"""Joins the data, the view and the template of the page of models."""

from collections.abc import Sequence

import plotly.graph_objects as go

from kopt.dashboard import figures
from kopt.dashboard.pages.models.data import MODELS
from kopt.dashboard.pages.models.view import CoverageLine, model_page
from kopt.dashboard.pages.page import Content, Page, PageRequest
from kopt.models.predictors import predictor_names

MOST_SERIES = 100


async def models(request: PageRequest) -> Content:
    models = await request.latest(MODELS)
    view = model_page(models)
    charts = {"calibration": _calibration(view.coverage)} if view.coverage else {}
    charts |= {f"measured-{each.name}": figures.measured(each.points, each.unit) for each in view.measured}
    return {"view": view, "models": models, "charts": charts, "limit": MOST_SERIES}


def _calibration(coverage: Sequence[CoverageLine]) -> go.Figure:
    lines: dict[str, list[tuple[float, float]]] = {}
    for coverage_line in coverage:
        lines.setdefault(coverage_line.role, []).append((coverage_line.nominal, coverage_line.observed))
    return figures.calibration(lines)


PAGE = Page("/models", "models/template.html", models, "Models", feeds=(MODELS,), predictors=predictor_names())
