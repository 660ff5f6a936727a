"""What a training cost by epoch: its log against what its pods were charged."""

import itertools
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from asgi_server import served
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from kopt.cli.main import app
from kopt.core.cost.metering import GPU_HOUR
from kopt.core.cost.prices import Price
from kopt.core.settings import Settings
from kopt.formats.joblog.epochs import Epoch, EpochReader, read_epochs
from kopt.policies.cost.epochs import distinct_epochs, epoch_costs
from kopt.policies.cost.report import CostEvent
from kopt.serving.checkpoint.service import CheckpointService
from kopt.serving.client.blocking import PredictionClient
from kopt.serving.endpoint.app import create_app
from kopt.serving.endpoint.assemble import Parts, assemble
from tests.cli.endpoints import Nothing
from tests.cost.metered import HOUR_MS, filled

START_S = 1_780_000_000.0
PRICE = Price("H100", "", "", "on-demand", 2_000_000, "USD", 0, "")


def stamped(after_s: float, text: str) -> str:
    return f"{datetime.fromtimestamp(START_S + after_s, UTC):%Y-%m-%d %H:%M:%S} {text}"


def event(start_h: float, end_h: float, gpus: int = 4, price: Price | None = PRICE) -> CostEvent:
    used = round((end_h - start_h) * gpus * GPU_HOUR)
    micro = None if price is None else round(used / GPU_HOUR * price.micro_per_gpu_hour)
    times = (round(1000 * START_S + hours * HOUR_MS) for hours in (start_h, end_h))
    return CostEvent("pod", "node", *times, gpus * 1000, used, price, micro)


def test_epochs_steps_and_rates_of_a_log() -> None:
    lines = [
        stamped(0, "loading"),
        stamped(60, "Epoch [1/2] step 1/100 loss 2.1"),
        stamped(1_800, "Epoch [1/2] step 90/100 loss 1.9, 400 samples/s, 0.2M tokens/s"),
        stamped(2_000, "Epoch [1/2] step 100/100 loss 1.9, 600 samples/s"),
        stamped(2_060, "Epoch [2/2] step 1/100 loss 1.8"),
        stamped(4_000, "Epoch [2/2] step 100/100 loss 1.8 samples_per_second: 1,000"),
        stamped(4_100, "saved"),
    ]
    assert read_epochs(lines) == (
        Epoch(1, START_S + 60, START_S + 2_060, 99, 500.0, 200_000.0),
        # Its first line says that one step was made since the line before.
        Epoch(2, START_S + 2_060, START_S + 4_100, 100, 1_000.0),
    )


@pytest.mark.parametrize(
    ("lines", "numbers"),
    [
        (["{'loss': 1.2, 'epoch': 0.5}", "{'loss': 1.1, 'epoch': 0.98}", "{'loss': 1.0, 'epoch': 1.02}"], [0, 1]),
        (["Epoch 3:  10%|#  | 9/90 [00:01<00:09]", "Epoch 4:  10%|#  | 9/90 [00:01<00:09]"], [3, 4]),
        (["epoch 1", "epoch 2", "resumed", "epoch 2", "epoch 1"], [1, 2, 1]),
        (["num_epochs: 90", "epochs = 3", "per-epoch 5"], []),
        (["step 3/90", "step 4/90"], []),
    ],
)
def test_how_logs_name_epochs(lines: list[str], numbers: list[int]) -> None:
    epochs = read_epochs(stamped(at_s, line) for at_s, line in enumerate(lines))
    assert [epoch.number for epoch in epochs] == numbers
    assert not read_epochs(lines), "nothing without times"


@given(st.lists(st.text(max_size=60), max_size=20))
def test_no_log_makes_it_raise(lines: list[str]) -> None:
    for epoch in read_epochs([stamped(0, "epoch 1"), *lines]):
        assert epoch.start_s <= epoch.end_s
        assert epoch.steps >= 0


def test_an_epoch_costs_what_was_charged_while_it_went_on() -> None:
    # Four GPUs at $2 for two hours, eight for the third: $16, then $16.
    events = [event(0, 2), event(2, 3), event(2, 3)]
    epochs = [
        Epoch(1, START_S + 1_800, START_S + 5_400, 500, 10.0),
        Epoch(2, START_S + 5_400, START_S + 9_000, 500, 10.0, 20.0),
    ]
    first, second, whole = epoch_costs(events, epochs)
    assert (first.micro, first.gpu_hours, first.micro_per_1000_steps) == (8_000_000, 4.0, 16_000_000)
    assert second.micro == 4_000_000 + 8_000_000
    assert whole.micro == 32_000_000, "half an hour before and half an hour after are paid as well"
    assert (whole.epoch, whole.steps, whole.micro_per_1000_steps) == (None, 1_000, 32_000_000)
    assert first.samples_per_unit == pytest.approx(10 * 3_600 / 8)
    assert whole.samples_per_unit == pytest.approx(2 * 36_000 / 32)
    assert (first.tokens_per_unit, whole.tokens_per_unit) == (None, None), "the first epoch's tokens are not known"


@given(st.lists(st.floats(0.01, 2.99), min_size=1, max_size=8, unique=True))
def test_epochs_that_meet_cost_what_all_of_them_together_do(cuts: list[float]) -> None:
    bounds = [0.0, *sorted(cuts), 3.0]
    epochs = [
        Epoch(number, START_S + 3600 * low, START_S + 3600 * high)
        for number, (low, high) in enumerate(itertools.pairwise(bounds))
    ]
    *rows, whole = epoch_costs([event(0, 2), event(1, 3, 8)], epochs)
    assert sum(row.micro or 0 for row in rows) == pytest.approx(whole.micro, abs=20)
    assert sum(row.gpu_hours for row in rows) == pytest.approx(whole.gpu_hours, rel=1e-3)


def test_without_a_price_hours_are_left_and_two_currencies_are_refused() -> None:
    epoch = Epoch(1, START_S, START_S + 3_600, 10)
    row, whole = epoch_costs([event(0, 1, price=None)], [epoch])
    assert (row.micro, row.gpu_hours, row.micro_per_1000_steps, whole.micro) == (None, 4.0, None, None)
    euro = Price("H100", "", "", "on-demand", 1, "EUR", 0, "")
    with pytest.raises(ValueError, match="EUR and USD"):
        epoch_costs([event(0, 1), event(0, 1, price=euro)], [epoch])


@pytest.fixture
def metered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """A meter's database; when it began to meter, in Unix milliseconds."""
    now_ms = int(time.time() * 1000)
    filled(tmp_path / "cost.db", now_ms=now_ms).store.close()
    monkeypatch.setenv("KOPT_STATE_DIR", str(tmp_path))
    monkeypatch.delenv("KOPT_DATABASE_URL", raising=False)
    return now_ms - 10 * HOUR_MS


def log_of(tmp_path: Path, start_ms: int) -> str:
    lines = []
    for epoch in (1, 2):
        for step in (1, 500, 1000):
            at_ms = start_ms + HOUR_MS * (epoch + 1) + step * 3_600
            time_text = f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
            lines.append(f"{time_text} Epoch [{epoch}/2] step {step}/1000 80.0 samples/s")
    path = tmp_path / "train.log"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def asked(*options: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["cost", "run", *options], env={"COLUMNS": "160"})
    return result.exit_code, result.stdout if result.exit_code == 0 else result.output


def test_a_run_of_the_meter_is_told_by_epoch(tmp_path: Path, metered: int) -> None:
    code, text = asked("eval", "--log", log_of(tmp_path, metered), "--price", "3", "-o", "json")
    assert code == 0, text
    document = json.loads(text)
    first, second, whole = document["epochs"]
    assert document["workload"] == "team-b/jobs/eval"
    assert [row["epoch"] for row in document["epochs"]] == ["1", "2", "all"]
    # Two GPUs for an hour.
    assert first["gpu_hours"] == pytest.approx(2, rel=0.01)
    assert second["gpu_hours"] == pytest.approx(2, rel=0.01)
    assert whole["gpu_hours"] == pytest.approx(18, rel=0.01)
    each = first["micro"] / first["gpu_hours"]
    assert whole["micro"] == pytest.approx(each * whole["gpu_hours"], rel=1e-3)
    assert first["micro_per_1000_steps"] == pytest.approx(first["micro"], rel=0.01)
    assert first["samples_per_unit"] == pytest.approx(80 * 3_600 / (first["micro"] / 1e6), rel=0.01)
    assert first["tokens_per_unit"] is None


def test_what_a_log_does_not_say_is_said(tmp_path: Path, metered: int) -> None:
    path = tmp_path / "short.log"
    path.write_text("loading\nloss 1.2\n", encoding="utf-8")
    code, text = asked("team-a/jobs/train", "--log", str(path))
    assert code == 0, text
    words = " ".join(text.split())
    assert "names no epoch with a date and a time" in words
    assert "counts no steps" in words
    assert "says no samples/s" in words
    code, text = asked("train", "--log", log_of(tmp_path, metered - 400 * 24 * HOUR_MS))
    assert "is it the log of this run?" in " ".join(text.split())


@pytest.mark.parametrize(
    ("name", "log", "word"),
    [
        ("nothing", "train.log", "no workload is called 'nothing'; there are team-a/deployments/serve"),
        ("train", "none.log", "none.log cannot be read"),
        ("train", "checkpoint.bin", "checkpoint.bin is no log"),
    ],
)
def test_what_is_not_there_is_one_line(tmp_path: Path, metered: int, name: str, log: str, word: str) -> None:
    log_of(tmp_path, metered)
    (tmp_path / "checkpoint.bin").write_bytes(bytes(range(256)) * 8)
    code, text = asked(name, "--log", str(tmp_path / log))
    assert code == 1
    assert word in " ".join(text.split())


@given(st.lists(st.integers(0, 30), max_size=6))
def test_a_reader_that_goes_on_elsewhere_reads_the_same(cuts: list[int]) -> None:
    lines = [f"Epoch {number // 10} step {number % 10}/10 at {number} samples/s, 3 tokens/s" for number in range(30)]
    whole, reader, epochs = EpochReader(), EpochReader(), dict[float, Epoch]()
    for number, line in enumerate(lines):
        whole.read(line, START_S + number)
        reader.read(line, START_S + number)
        epochs |= {epoch.start_s: epoch for epoch in reader.epochs()}
        if number in cuts:
            reader.drop_ended()
            reader = EpochReader.from_dict(json.loads(json.dumps(reader.to_dict())))
    assert tuple(epochs.values()) == whole.epochs()


def test_processes_that_print_the_same_count_once_and_a_restart_counts_again() -> None:
    def epochs(start_s: float, *numbers: int, steps: int = 0) -> list[Epoch]:
        return [Epoch(number, start_s + 100 * at, start_s + 100 * (at + 1), steps) for at, number in enumerate(numbers)]

    first, second = epochs(0, 1, 2, 3, steps=10), epochs(1_000, 3, 4)
    sources = {"rank-1": epochs(3, 1, 2), "rank-0": first, "restarted": second, "its-rank-1": epochs(1_000, 3, 4)}
    assert distinct_epochs(sources) == [*first, *second]
    assert distinct_epochs({"b": epochs(0, 1, 2), "a": epochs(0, 1, 2, steps=5)}) == epochs(0, 1, 2, steps=5)
    assert distinct_epochs({"a": [Epoch(1, 5, 5)], "b": [Epoch(1, 5, 5)]}) == [Epoch(1, 5, 5)]
    assert distinct_epochs({"b": epochs(0, 1, 2, 3), "a": epochs(50, 1, 2)}) == epochs(0, 1, 2, 3)
    assert distinct_epochs({"a": epochs(0, 1, 2), "b": epochs(50, 1, 2, 3)}) == epochs(50, 1, 2, 3)
    assert distinct_epochs({}) == []


@pytest.fixture
def followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PredictionClient]:
    """An endpoint that commands ask, which follows jobs."""
    endpoint = assemble(Settings(home=tmp_path / "endpoint"), Parts(Nothing(), refresh_s=3600))
    endpoint.service(CheckpointService).refresh()
    with served(create_app(endpoint, manage=False)) as url, PredictionClient(url, deadline_s=30.0) as client:
        monkeypatch.setenv("KOPT_URL", url)
        yield client
    endpoint.stop()


def test_without_a_log_epochs_are_those_that_the_endpoint_has_read(
    tmp_path: Path, metered: int, followed: PredictionClient
) -> None:
    code, text = asked("eval")
    assert code == 1
    assert "has read no epoch in the log of team-b/eval; give its log: --log FILE" in " ".join(text.split())
    path = Path(log_of(tmp_path, metered))
    for source in ("eval-0/train", "eval-1/train"):
        lines = []
        for line in path.read_text(encoding="utf-8").splitlines():
            time_text, _, rest = line.partition(" ")
            lines.append({"text": rest, "at": datetime.fromisoformat(time_text).timestamp()})
        followed.checkpoint({"job": "team-b/eval", "source": source, "first": 1, "lines": lines})
    answers = []
    for options in (["--log", str(path)], []):
        code, text = asked("eval", *options, "-o", "json")
        assert code == 0, text
        answers.append(json.loads(text)["epochs"])
    assert len(answers[0]) == 3
    assert answers[1] == answers[0]


def test_an_endpoint_that_is_away_is_one_line(metered: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOPT_URL", "http://127.0.0.1:9")
    code, text = asked("eval")
    assert code == 1
    assert "gives no answer" in " ".join(text.split())
    assert "Traceback" not in text
