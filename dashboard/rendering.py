"""Templates: everything is escaped, numbers and times are worded by ``wording``."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import plotly.graph_objects as go
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from kopt.core.reason_codes.catalogue import reason_codes
from kopt.core.units import format_bytes
from kopt.dashboard import assets
from kopt.dashboard import formatting as wording
from kopt.dashboard.pages.page import Page
from kopt.dashboard.pages.services.view import data_url, service_url
from kopt.serving.demand.health import PSI_NOTICE

_ESCAPES = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026", 0x2028: "\\u2028", 0x2029: "\\u2029"}


def environment(
    navigation: Mapping[str, Sequence[Page]] = MappingProxyType({}), *, example: bool = False
) -> Environment:
    """The pages' templates, which lead to those of ``navigation`` by its groups. An undefined name is an error.

    ``example`` marks every page as one of an example cluster.
    """
    folder = Path(__file__).parent
    env = Environment(
        # What pages share, and beside each page's view what it has of its own: ``jobs/template.html``.
        loader=FileSystemLoader([folder / "templates", folder / "pages"]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = (
        wording.amount,
        wording.decimal,
        wording.share,
        wording.span,
        wording.horizon,
        wording.quantile,
        wording.iso,
        wording.clock,
        wording.shortened,
    )
    env.filters.update({filter_.__name__: filter_ for filter_ in filters})
    env.filters |= {"pretty": pretty, "figure_json": figure_json, "service_url": service_url, "data_url": data_url}
    env.filters["meaning"] = meaning
    env.globals |= {
        "asset": assets.addresses(),
        "navigation": navigation,
        "example": example,
        "user": None,
        "events": "",
        "word_bytes": format_bytes,
        "word_hours": lambda hours: f"{hours} h" if hours < 48 else f"{hours // 24} days",
        "psi_notice": PSI_NOTICE,
        "word_horizon": wording.horizon,
        "word_risk": lambda risk: f"{risk * 100:g} % of the time",
    }
    return env


def figure_json(figure: go.Figure) -> Markup:
    """A figure for ``<script type="application/json">``: no text in it can end the element."""
    return Markup(figure.to_json().translate(_ESCAPES))


def meaning(code: str) -> str:
    """What a reason code means, in each area that gives it; empty for what is no code of ours."""
    return " ".join(dict.fromkeys(each.means for each in reason_codes().get(code, ())))


def pretty(document: Any) -> str:
    """Indented JSON; numbers that JSON has no word for become null."""
    return json.dumps(_finite(document), indent=2, ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and value - value != 0 else value
