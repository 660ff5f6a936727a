"""Whether what a GPU shows while a job runs says when it ends: a small transformer over activity and memory, beside
trees on summaries of the same series, trees that know the age alone, and rates by age.

The only public series of that kind whose ends are known is Alibaba's trace of 144 inference pods (cluster-trace-v2026-
GenAI: memory and duty cycle every 57 s over 22.8 hours; 30 pods end within it). Every half hour each pod that runs is a
question: does it end within 15 minutes, 30 minutes, 1, 2, 4, 8 hours? What goes on at the end of the trace is censored:
a question counts in the intervals that were seen. Pods are held out whole, in three parts; the losses are means of the
log loss over a held-out pod's intervals, pods counting the same. Training takes a few minutes of one core.

    python -P -m benchmarks runtime-telemetry
"""

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.tables import markdown

TRACE = "memory/alibaba_genai_pod_gpu.csv.gz"
EDGES_S = np.array([0.0, 900.0, 1800.0, 3600.0, 7200.0, 14400.0, 28800.0])
STEP_S, ASKED_EVERY_S, TOKENS = 600.0, 1800.0, 24
PARTS, SEEDS, ROUNDS, PASSES, WIDTH = 3, 2, 60, 8, 32
LEAST_S = 300.0
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Questions:
    """``series`` (n, T, C) of the last steps, NaN before the pod began; ``age_s`` (n,), NaN where the trace does not
    show its begin; ``ended`` and ``seen`` (n, intervals): whether it ended in an interval, and whether that is known;
    ``pods`` (n,)."""

    series: Array
    age_s: Array
    ended: Array
    seen: Array
    pods: NDArray[np.int64]

    def where(self, rows: NDArray[np.bool_]) -> "Questions":
        return Questions(self.series[rows], self.age_s[rows], self.ended[rows], self.seen[rows], self.pods[rows])

    def summaries(self) -> Array:
        """(n, F): the logarithm of the age, and the last value, mean, spread and trend of each channel."""
        import warnings

        with warnings.catch_warnings():
            # A channel that is unknown over the whole window stays unknown.
            warnings.simplefilter("ignore", RuntimeWarning)
            parts = [
                self.series[:, -1],
                np.nanmean(self.series, axis=1),
                np.nanstd(self.series, axis=1),
                self.series[:, -1] - np.nanmean(self.series[:, :6], axis=1),
            ]
        return np.hstack([np.log1p(self.age_s)[:, None], *parts])


def read_questions(path: Path) -> Questions:
    """Channels: mean and largest duty cycle of ten minutes, memory, and the change of memory."""
    import pandas as pd

    frame = pd.read_csv(path).rename(columns={"timestamp_anon": "at_s", "container_ip": "pod", "gpu_duty_pct": "duty"})
    first_s, last_s = frame.at_s.min(), frame.at_s.max()
    frame["step"] = ((frame.at_s - first_s) // STEP_S).astype(int)
    parts: list[tuple[Any, ...]] = []
    for number, (_, pod) in enumerate(frame.groupby("pod")):
        begun_s, ended_s = pod.at_s.min(), pod.at_s.max()
        is_begin, is_end = begun_s > first_s + LEAST_S, ended_s < last_s - LEAST_S
        steps = pod.groupby("step").agg(mean=("duty", "mean"), largest=("duty", "max"), bytes=("gpu_mem_bytes", "mean"))
        table = steps.reindex(range(int(frame.step.max()) + 1))
        memory = table.bytes.to_numpy() / 2**30 / 40
        values = np.stack(
            [table["mean"].to_numpy() / 100, table.largest.to_numpy() / 100, memory, np.diff(memory, prepend=np.nan)], 1
        )
        padded = np.vstack([np.full((TOKENS, 4), np.nan), values])
        at_s = begun_s + LEAST_S
        while at_s < ended_s:
            # Of a step that has not ended nothing is known.
            step = int((at_s - first_s) // STEP_S)
            left_s = ended_s - at_s
            in_interval = (left_s >= EDGES_S[:-1]) & (left_s < EDGES_S[1:]) & is_end
            known = (left_s >= EDGES_S[1:]) | in_interval
            parts.append(
                (padded[step : step + TOKENS], at_s - begun_s if is_begin else np.nan, in_interval, known, number)
            )
            at_s += ASKED_EVERY_S
    series, age_s, ended, seen, pods = zip(*parts, strict=True)
    columns = (np.array(age_s), np.array(ended, dtype=float), np.array(seen, dtype=float), np.array(pods))
    return Questions(np.array(series), *columns)


def rates(train: Questions, test: Questions, *, by_age: bool) -> Array:
    """Shares of questions that end in each interval, of those that reached it: of all, or of those of like age."""

    def of(rows: Questions) -> Array:
        share: Array = (rows.ended.sum(0) + 0.5) / (
            rows.seen.sum(0) + 1.0 / max(1e-3, train.ended.sum() / train.seen.sum())
        )
        return share

    if not by_age:
        return np.tile(of(train), (len(test.pods), 1))
    result = np.zeros(test.ended.shape)
    edges = [1800.0, 7200.0, 21600.0]
    groups = [np.where(np.isnan(each.age_s), -1, np.digitize(each.age_s, edges)) for each in (train, test)]
    for group in np.unique(groups[1]):
        result[groups[1] == group] = of(train.where(groups[0] == group))
    return result


def trees(train: Questions, test: Questions, seed: int, *, age_alone: bool) -> Array:
    """Boosted trees for whether it ends in an interval that it has reached, the interval's number among the inputs."""
    import lightgbm

    def rows(questions: Questions) -> Array:
        summaries = questions.summaries()[:, :1] if age_alone else questions.summaries()
        intervals = len(EDGES_S) - 1
        number = np.tile(np.arange(intervals), len(summaries))[:, None]
        return np.hstack([np.repeat(summaries, intervals, axis=0), number])

    seen = train.seen.ravel() > 0
    data = lightgbm.Dataset(rows(train)[seen], train.ended.ravel()[seen])
    settings = {"objective": "binary", "num_leaves": 7, "min_data_in_leaf": 40, "learning_rate": 0.05, "seed": seed}
    more = {"feature_fraction": 0.7, "bagging_fraction": 0.7, "bagging_freq": 1, "num_threads": 1, "verbose": -1}
    booster = lightgbm.train(settings | more, data, ROUNDS)
    result: Array = np.asarray(booster.predict(rows(test))).reshape(test.ended.shape)
    return result


def transformer(train: Questions, test: Questions, seed: int) -> Array:
    """Two layers of attention over the steps; a logit for each interval."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(seed)

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inputs = nn.Linear(9, WIDTH)
            self.positions = nn.Parameter(0.02 * torch.randn(TOKENS, WIDTH))
            layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.2, batch_first=True, norm_first=True)
            self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.outputs = nn.Linear(WIDTH, len(EDGES_S) - 1)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.outputs(self.layers(self.inputs(tokens) + self.positions)[:, -1])
            return result

    def tokens(questions: Questions) -> torch.Tensor:
        known = np.isfinite(questions.series)
        age = np.nan_to_num(np.log1p(questions.age_s), nan=0.0)[:, None, None] / 10
        repeated = np.broadcast_to(age, (*known.shape[:2], 1))
        return torch.tensor(np.concatenate([np.nan_to_num(questions.series), known, repeated], 2), dtype=torch.float32)

    network, inputs = Network(), tokens(train)
    ended, seen = (torch.tensor(each, dtype=torch.float32) for each in (train.ended, train.seen))
    with torch.no_grad():
        share = (ended.sum(0) + 0.5) / (seen.sum(0) + 1)
        network.outputs.bias.copy_(torch.logit(share))
    optimiser = torch.optim.AdamW(network.parameters(), lr=1e-3, weight_decay=0.1)
    for _ in range(PASSES):
        for rows in torch.split(torch.randperm(len(inputs)), 128):  # type: ignore[no-untyped-call]
            losses = nn.functional.binary_cross_entropy_with_logits(
                network(inputs[rows]), ended[rows], reduction="none"
            )
            optimiser.zero_grad()
            ((losses * seen[rows]).sum() / seen[rows].sum()).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    network.eval()
    with torch.no_grad():
        result: Array = torch.sigmoid(network(tokens(test))).numpy().astype(float)
    return result


def losses_by_pod(shares: Array, test: Questions) -> Array:
    """Mean log loss of each pod's intervals (pods,)."""
    clipped = np.clip(shares, 1e-4, 1 - 1e-4)
    losses = -(test.ended * np.log(clipped) + (1 - test.ended) * np.log(1 - clipped)) * test.seen
    return np.array(
        [losses[test.pods == pod].sum() / max(1.0, test.seen[test.pods == pod].sum()) for pod in np.unique(test.pods)]
    )


METHODS = {
    "rates of all pods": lambda train, test, seed: rates(train, test, by_age=False),
    "rates by age": lambda train, test, seed: rates(train, test, by_age=True),
    "trees, the age alone": lambda train, test, seed: trees(train, test, seed, age_alone=True),
    "trees, activity and memory": lambda train, test, seed: trees(train, test, seed, age_alone=False),
    "transformer, activity and memory": transformer,
}


def main() -> int:
    """Print the table; 0 always: nothing is promised of it."""
    folder = os.environ.get("KOPT_DATA_DIR", "")
    path = Path(folder) / TRACE
    if not folder or not path.exists():
        print(f"left out: KOPT_DATA_DIR has no {TRACE}")
        return 0
    questions = read_questions(path)
    part = np.random.default_rng(0).permutation(questions.pods.max() + 1)[questions.pods] % PARTS
    rows = []
    for name, method in METHODS.items():
        began_s = time.process_time()
        by_seed = []
        for seed in range(SEEDS):
            losses = [
                losses_by_pod(
                    method(questions.where(part != held), questions.where(part == held), seed),
                    questions.where(part == held),
                )
                for held in range(PARTS)
            ]
            by_seed.append(np.concatenate(losses))
        ends = np.concatenate(
            [
                [questions.ended[questions.pods == pod].any() for pod in np.unique(questions.pods[part == held])]
                for held in range(PARTS)
            ]
        )
        every = np.array(by_seed)
        seeds = ", ".join(f"{mean:.4f}" for mean in every.mean(1))
        of_ended = f"{every[:, ends].mean():.3f}"
        rows.append((name, f"{every.mean():.4f} ({seeds})", of_ended, f"{time.process_time() - began_s:.0f} s"))
        print(rows[-1], file=sys.stderr, flush=True)
    print(f"{len(np.unique(questions.pods))} pods, {len(questions.pods):,} questions.\n")
    print(markdown(("answered by", "loss (by seed)", "of pods that end", "time of a core"), rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
