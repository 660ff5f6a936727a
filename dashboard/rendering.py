"""Templates: everything is escaped, numbers and times are worded by ``wording``."""

import json
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from kopt.core.units import format_bytes
from kopt.dashboard import assets, wording
from kopt.dashboard.overview import data_url, service_url
from kopt.serving.health import PSI_NOTICE

_ESCAPES = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026", 0x2028: "\\u2028", 0x2029: "\\u2029"}


def environment() -> Environment:
    """The pages' templates. An undefined name is an error, not an empty string."""
    env = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    words = (
        wording.amount, wording.decimal, wording.share, wording.span, wording.horizon, wording.quantile, wording.iso,
        wording.clock, wording.shortened,
    )  # fmt: skip
    env.filters.update({word.__name__: word for word in words})
    env.filters |= {"pretty": pretty, "figure_json": figure_json, "service_url": service_url, "data_url": data_url}
    env.globals |= {
        "asset": assets.addresses(),
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


def pretty(document: Any) -> str:
    """Indented JSON; numbers that JSON has no word for become null."""
    return json.dumps(_finite(document), indent=2, ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and value - value != 0 else value
