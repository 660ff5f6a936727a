"""What answers show of themselves in a notebook: tables and charts, with nothing of theirs taken for markup."""

import re
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from kopt.core.notebook import bar, span_chart, stacked_bar, table, waits_chart
from kopt.core.reason import Reason
from kopt.core.workload.language_models import find_language_model
from kopt.core.workload.run_time import LEVELS, RunTimeAnswer
from kopt.core.workload.split import (
    CurvePoint,
    Framework,
    ScalingCurve,
    Settings,
    Split,
    SplitAdvice,
    SplitEstimate,
    TrainingJob,
)

HOSTILE = "<script>&'\""
_SPANS = st.lists(st.floats(0, 1e9), min_size=5, max_size=5).map(sorted)


def parsed(html: str) -> ElementTree.Element:
    """Raises ParseError for markup that is not closed, or that a text has brought in."""
    return ElementTree.fromstring(f"<div>{html}</div>")


@given(spans=_SPANS, text=st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20))
def test_charts_are_sound_whatever_they_show(spans: list[float], text: str) -> None:
    chart = span_chart(text, *spans)
    numbers = [float(value) for value in re.findall(r'(?:x1|x2|x|width)="(-?[\d.]+)"', chart)]
    assert all(0 <= value <= 360 for value in numbers)
    widths = [float(each.get("width", "0")) for each in parsed(waits_chart(spans[0], spans[-1])).iter("rect")]
    assert widths[1] <= widths[0]
    parts = {f"{text}{at}": value for at, value in enumerate(spans)}
    boxes = list(parsed(stacked_bar(parts, 2 * sum(spans))).iter("rect"))
    assert sum(float(box.get("width", "0")) for box in boxes) <= 91
    parsed(table(text, (text, ""), [(text, chart), (text, bar(spans[0]))], text))


def test_texts_are_no_markup() -> None:
    html = table(HOSTILE, (HOSTILE,), [(HOSTILE,)], HOSTILE)
    assert "<script" not in html
    assert [each.text for each in parsed(html).iter("td")] == [HOSTILE, HOSTILE]
    assert "<script" not in span_chart(HOSTILE, 1, 2, 3, 4, 5) + stacked_bar({HOSTILE: 1.0}, 1.0)


def test_a_run_time_shows_its_quantiles_and_what_remains() -> None:
    run = tuple(3_600.0 * at for at in range(2, 9))
    remaining = tuple(value - 3_600 for value in run)
    reasons = (Reason("SIMILAR_RUNS", HOSTILE),)
    html = RunTimeAnswer(run, remaining, reasons, "class", 20)._repr_html_()
    assert [each.text for each in parsed(html).iter("th")][1:-1] == [f"p{level * 100:.0f}" for level in LEVELS]
    assert len(list(parsed(html).iter("svg"))) == 2
    assert "5 h" in html
    assert "<script" not in html
    once = RunTimeAnswer(run, run, reasons, "class", 20)._repr_html_()
    assert len(list(parsed(once).iter("svg"))) == 1
    refused = RunTimeAnswer(None, None, reasons, "none", 0)._repr_html_()
    assert "<svg" not in refused
    assert parsed(refused)[0].text == HOSTILE


def test_splits_and_a_curve_show_where_the_time_goes() -> None:
    job = TrainingJob(find_language_model("Llama-3-8B"), "H100-SXM5-80GB", 8, 8, 4096, 64)
    parts, settings = {"compute": 6.0, "tensor": 2.0}, (Settings(Framework.MEGATRON, f"--x {HOSTILE}"),)
    best = SplitEstimate(
        Split(4, 2), 0.97, 7e10, 6e10, 8e10, 8.0, 7.0, 9.5, 0.9, 0.4, 32_768.0, 68.0, None, parts, settings
    )
    reasons = (Reason("SPLITS", HOSTILE),)
    tree = parsed(SplitAdvice(job, (best,), 120, reasons)._repr_html_())
    assert [each.text for each in tree.iter("title")] == ["compute: 75%", "tensor: 25%"]
    assert next(tree.iter("pre")).text == f"--x {HOSTILE}"
    assert "data 4 × tensor 2" in "".join(tree.itertext())
    assert HOSTILE in "".join(parsed(SplitAdvice(job, (), 120, reasons)._repr_html_()).itertext())
    points = (CurvePoint(8, best, 1.0, 1.0), CurvePoint(16, best, 1.2, 0.2))
    curve = parsed(ScalingCurve(job, points, 0.7, 8, reasons)._repr_html_())
    assert [each.text for each in curve.iter("b")] == ["8"]
    assert "it fits on none" in ScalingCurve(job, (), 0.7, None, reasons)._repr_html_()
