"""What MLflow's page of a model version says in words: the data, the gate's decision, its figures, how to load it."""

from collections.abc import Mapping

from kopt import __version__
from kopt.core.redaction import redact
from kopt.models.registry.registry import RegisteredModel
from kopt.training.pipeline.protocols import Dataset, GateDecision

_OVERALL = "all/"
_MOST_ROWS = 30


def version_page(
    model: RegisteredModel,
    dataset: Dataset,
    decision: GateDecision,
    metrics: Mapping[str, float],
    champion: Mapping[str, float],
) -> str:
    """Markdown. ``metrics`` and ``champion`` are figures on the same rows, by name; the champion's may be missing."""
    groups = len({dataset.group(name) for name in dataset.names})
    amount = f"{len(dataset.names)} series or families in {groups} groups, {len(dataset.excluded)} left out"
    outcome = "The gate passed it" if decision.passed else "The gate refused it"
    against = f" against version {model.gate_against}" if model.gate_against else ""
    lines = [
        f"Trained with `kopt train {model.name}` (kopt {__version__}) on **{redact(dataset.name)}**: {amount}. "
        f"Data digest `{dataset.digest[:12]}`, model digest `{model.digest[:12]}`.",
        "",
        f"**{outcome}{against}.** {redact(decision.summary)}",
        "",
        *_table(metrics, champion),
        "```python",
        "import kopt",
        f'model = kopt.load_model("models:/{model.name}/{model.version}")',
        "```",
    ]
    return "\n".join(lines)


def _table(metrics: Mapping[str, float], champion: Mapping[str, float]) -> list[str]:
    names = [name for name in sorted(metrics) if name.startswith(_OVERALL)][:_MOST_ROWS]
    if not names:
        return []
    rows = [
        f"| {name.removeprefix(_OVERALL)} | {metrics[name]:.4g} | {_figure(champion.get(name))} |" for name in names
    ]
    return ["| figure | this version | the champion, on the same rows |", "|---|---|---|", *rows, ""]


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
