"""What ``kopt why`` advises about gangs of a real KAI, done there: the gang is bound then, and not with one more."""

import logging
import random
from collections import Counter

import pytest
from benchmarked import benchmark_module
from controlplane.kai import Kai
from controlplane.kwok import Kwok
from controlplane.plane import ControlPlane

from .kai_situations import OnKai

pytestmark = pytest.mark.cluster
EACH, RIGHT, HOLD = 3, 0.95, 0.95
COUNTED = ("fewer-gpus", "fewer-pods")
FAST = ("over_limit_kai",)


def constructed(*names: str, each: int = EACH) -> list[object]:
    gangs, evaluation = benchmark_module("why_situations.gangs"), benchmark_module("why_situations.evaluation")
    makers = [make for make in gangs.MAKERS if make(random.Random(0)).engine == gangs.KAI]
    # What lacks pods is no matter of nodes or queues.
    makers = [make for make in makers if make.__name__ in names or not (names or "incomplete" in make.__name__)]
    return list(evaluation.situations(each, makers))


def scores(plane: ControlPlane, kwok: Kwok, situations: list[object]) -> Counter[str]:
    """Situations and changes, those that are right, and words about the others."""
    plane.install_crds("training-operator")
    result = Counter[str]()
    for situation in situations:
        with OnKai(plane, kwok, situation).built() as on_kai:
            diagnosis = on_kai.diagnosis()
            code, label = diagnosis["causes"][0]["code"], situation.label  # type: ignore[attr-defined]
            result["situations"] += 1
            result["right" if code in situation.right else f"{label} as {code}"] += 1  # type: ignore[attr-defined]
            on_kai.forget()
            # What is waited for is gone afterwards.
            for change in sorted(diagnosis["changes"], key=lambda change: change["kind"] == "wait"):
                assert change["verified"]
                if change["kind"] in COUNTED:
                    result["counted"] += 1
                    smallest = on_kai.is_smallest(change)
                    result["smallest" if smallest else f"{label}: {change['kind']} is not the smallest"] += 1
                result["changes"] += 1
                result["hold" if on_kai.holds(change) else f"{label}: {change['kind']} does not hold"] += 1
    return result


def test_fewer_pods_or_an_end_let_a_gang_run_within_its_limit(
    control_plane: ControlPlane, kwok: Kwok, kai: Kai
) -> None:
    result = scores(control_plane, kwok, constructed(*FAST, each=1))
    assert result["right"] == result["situations"] == 1, result
    assert result["hold"] == result["changes"] >= 2, result
    assert result["smallest"] == result["counted"], result


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_changes_hold_when_they_are_made(control_plane: ControlPlane, kwok: Kwok, kai: Kai) -> None:
    result = scores(control_plane, kwok, constructed())
    logging.getLogger(__name__).info("%s", dict(result))
    assert result["right"] >= RIGHT * result["situations"], result
    assert result["hold"] >= HOLD * result["changes"], result
    assert result["smallest"] >= HOLD * result["counted"], result
