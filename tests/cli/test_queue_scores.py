"""``kopt queue``: who overtakes whom, and the order by the formula."""

from dataclasses import replace
from typing import Any

from kopt.cli.cluster.queueing.queue import answer
from kopt.cli.cluster.queueing.scores import scores
from kopt.controllers.overview.queues import lines
from kopt.core.scheduling.classify import ClassSigns, classify
from kopt.core.scheduling.eviction import System
from kopt.core.scheduling.queued import Queued, State
from kopt.core.scheduling.workload_class import default_classes

NOW_S, HOUR = 1_900_000_000.0, 3600.0


def queued(name: str, priority: int, hours: float, gpus: int = 1, **more: Any) -> Queued:
    created_s = NOW_S - hours * HOUR
    return Queued(
        *("team", name, "Job", name, name, name, System.KUEUE, "local", "research", priority, 1000 * gpus),
        more.get("state", State.PENDING),
        created_s,
        created_s,
    )


def test_a_line_says_which_older_one_it_is_before_and_why() -> None:
    listed = lines([queued("old", 0, 9.0), queued("urgent", 100, 1.0), queued("runs", 0, 20.0, state=State.RUNNING)])
    rows = {row.workload: row for row in answer(listed, (), NOW_S).rows}  # type: ignore[attr-defined]
    assert rows["team/urgent"].position == 1
    assert rows["team/urgent"].overtakes == "before team/old, 8 h older: priority 100 over 0"
    assert rows["team/old"].overtakes == ""
    assert rows["team/runs"].overtakes == ""


def test_by_score_age_overtakes_class_in_the_end() -> None:
    listed = lines([queued("old", 0, 11.0), queued("urgent", 100, 0.5), queued("large", 0, 10.0, gpus=1024)])
    shown = scores(listed, NOW_S, 10.0, 5.0)
    rows = {row.workload: row for row in shown.rows}  # type: ignore[attr-defined]
    assert [row.workload for row in shown.rows] == ["team/large", "team/old", "team/urgent"]  # type: ignore[attr-defined]
    assert rows["team/large"].gpu_points == 50.0
    assert rows["team/old"].score == 110.0
    assert rows["team/old"].position == 2
    assert rows["team/old"].overtaken_for_s == 15 * HOUR
    assert rows["team/large"].why == "before team/old, 60 min older: it needs 1024 GPUs, the other 1"
    assert "score = class" in shown.remarks[0]
    assert scores([], NOW_S, 10.0, 5.0).rows == []


def test_what_a_class_counts_is_in_the_score_and_not_in_the_order_of_the_queue() -> None:
    chat = classify(ClassSigns("inference"), default_classes())
    listed = lines([queued("batch", 0, 1.0), replace(queued("chat", 0, 0.5), classified=chat)])
    shown = scores(listed, NOW_S, 10.0, 5.0)
    rows = {row.workload: row for row in shown.rows}  # type: ignore[attr-defined]
    assert [row.workload for row in shown.rows] == ["team/chat", "team/batch"]  # type: ignore[attr-defined]
    assert (rows["team/chat"].class_points, rows["team/chat"].workload_class) == (20.0, "inference")
    assert all(row.overtakes == "" for row in answer(listed, (), NOW_S).rows)  # type: ignore[attr-defined]
