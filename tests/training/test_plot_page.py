"""The plots of every training are drawn in the frame in which MLflow shows an artifact."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from playwright.async_api import Browser

from kopt.core.prediction import DEFAULT_QUANTILES
from kopt.data.demand.generator import generate
from kopt.data.demand.rolling import Forecasts
from kopt.features.demand import HORIZONS_S
from kopt.training.bandwidth.scoring import BandwidthScoring, MachineRun
from kopt.training.checkpoint.scoring import CheckpointScoring, LogRun
from kopt.training.demand.evaluate import score, scored_origins
from kopt.training.demand.plots import write_plots
from kopt.training.pipeline.plot_page import FILE
from kopt.training.pipeline.slices import RunScore
from kopt.training.sizing.scoring import SizedRun, SizingScoring
from tests.dashboard.test_browser import browser

__all__ = ["browser"]

GIB = float(2**30)

# What MLflow's artifact view does with an HTML file: a blob in a frame that may run scripts and has no origin.
FRAME = """html => {
    const frame = document.createElement('iframe');
    frame.setAttribute('sandbox', 'allow-scripts');
    frame.src = URL.createObjectURL(new Blob([html], {type: 'text/html'}));
    document.body.replaceChildren(frame);
}"""


def demand_plots(folder: Path) -> Sequence[Path]:
    (series,) = generate(services=1, days=4.0, seed=2)
    origins = scored_origins(series, HORIZONS_S)
    spread = np.linspace(1.0, 1.5, len(DEFAULT_QUANTILES))
    last = np.nan_to_num(series.value[origins])
    value = np.repeat((last[:, None] * spread)[:, None], len(HORIZONS_S), axis=1)
    forecasts = Forecasts(series.name, origins, HORIZONS_S, DEFAULT_QUANTILES, value)
    return write_plots(folder, score(series, forecasts), [series], [forecasts])


def sizing_plots(folder: Path) -> Sequence[Path]:
    runs = [
        SizedRun("llm/gpt", "nano", "abstract", 4 * GIB, 5 * GIB, 4 * GIB, 6 * GIB),
        SizedRun("vision/resnet", "50", "analytic", 9 * GIB, 8 * GIB, 7 * GIB, 12 * GIB),
    ]
    return SizingScoring().draw(folder, None, [], [RunScore(run, "unseen") for run in runs], {})


def checkpoint_plots(folder: Path) -> Sequence[Path]:
    counts = Counter({"train_step>train_step": 9, "ckpt_begin>other": 1, "other>other": 4})
    run = LogRun("run-1", "lightning", counts, 14, 2, 0, 2, 0, 12, 1, 2, 2, 2, 0, 10, 9, False, False)
    return CheckpointScoring().draw(folder, None, [], [RunScore(run, "unseen")], {})


def bandwidth_plots(folder: Path) -> Sequence[Path]:
    run = MachineRun("H100 × 8", "hgx-h100", 1, (("large", 0.04, 0.09, 12, 11), ("latency", 0.2, 0.4, 9, 8)))
    return BandwidthScoring().draw(folder, None, [], [RunScore(run, "unseen")], {})


DRAWN: Mapping[str, str] = {
    "demand": "#calibration .js-line, #lending_frontier .js-line, #fan_1 .js-line",
    "sizing": "#sizes .js-line, #sizes .point",
    "checkpoint": "#labels .hm image, #labels .hm path",
    "bandwidth": "#bandwidth .bars path",
}
"""What each page must have drawn."""


@pytest.mark.browser
@pytest.mark.parametrize("write", [demand_plots, sizing_plots, checkpoint_plots, bandwidth_plots])
async def test_the_page_draws_in_a_sandboxed_frame_and_loads_nothing(
    tmp_path: Path,
    browser: Browser,
    write: object,
) -> None:
    assert callable(write)
    (path,) = write(tmp_path)
    assert path.name == FILE
    html = path.read_text(encoding="utf-8")
    page = await browser.new_page()
    errors: list[str] = []
    loaded: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: loaded.append(request.url))
    await page.evaluate(FRAME, html)
    shapes = page.frame_locator("iframe").locator(DRAWN[write.__name__.removesuffix("_plots")])
    await shapes.first.wait_for(timeout=60_000)
    box = await shapes.first.bounding_box()
    assert box is not None
    assert box["width"] + box["height"] > 0
    assert errors == []
    assert {url.split(":", 1)[0] for url in loaded} <= {"blob", "data"}
    assert html.count("plotly.js v") == 1, "inside the page, and once"
