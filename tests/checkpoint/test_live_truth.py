"""The live proof counts what it must: answers that were wrong, and evictions that cut something off."""

import json
import math
from pathlib import Path
from typing import Any

from benchmarked import benchmark_module

truth = benchmark_module("live_checkpoints.truth")
moments = benchmark_module("live_checkpoints.moments")


def record(path: Path, *events: tuple[float, str, dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps({"at": at, "event": event, **facts}) + "\n" for at, event, facts in events))
    return path


def test_a_kill_in_a_write_and_one_that_sets_back_are_counted(tmp_path: Path) -> None:
    history = truth.lives(
        record(
            tmp_path / "silent.jsonl",
            (0.0, "start", {}),
            (5.0, "begin", {"step": 10}),
            (7.0, "durable", {"step": 10}),
            (9.0, "start", {}),
            (10.0, "resumed", {"step": 10}),
            (15.0, "begin", {"step": 20}),
            (16.0, "start", {}),
            (17.0, "broken", {"name": "checkpoint-20", "error": "torn"}),
            (18.0, "resumed", {"step": 10}),
            (25.0, "begin", {"step": 20}),
            (26.0, "durable", {"step": 20}),
            (30.0, "start", {}),
            (31.0, "resumed", {"step": 10}),
        )
    )
    assert truth.kills_of(history) == truth.Kills(count=3, torn=1, set_back=2)


def test_an_answer_is_wrong_where_it_calls_a_write_safe_from_its_first_moment_to_its_last() -> None:
    write = truth.Write(10, 100.0, 103.0)
    later = truth.Write(20, 200.0)

    def at(began_s: float, safe: bool) -> Any:
        return moments.Moment(began_s, began_s + 0.1, {"job": moments.Status(safe, "because")})

    found = moments.figures(
        "job",
        [at(50.0, True), at(102.95, True), at(104.0, False), at(110.0, True), at(201.0, True), at(202.0, False)],
        [write, later],
    )
    assert (found.moments, found.in_write, found.unsafe, found.unsafe_writes) == (4, 2, 1, 1)
    assert found.wrong == ((1.0, "because"),)
    assert (found.share, found.wait_s) == (0.5, 3.0)
    assert math.isnan(moments.figures("job", [at(50.0, True)], [write]).wait_s)
