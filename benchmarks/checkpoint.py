"""Whether jobs can be killed, told from their logs: frameworks never seen, beside regular expressions, in one run.

    python -m benchmarks.checkpoint [--folds 6] [--out FILE]

Excerpts of real logs (KOPT_DATA_DIR/logs, labelled by readers), the recorded corpus (labelled by the file system) and
save cycles rendered from trainers' source (KOPT_DATA_DIR/logs/source) are dealt into folds of whole families of
frameworks; each log is followed by a model that saw none of its family's.
``--out`` writes the answers about excerpts, one JSON object per line. The phrases that made-up jobs are built from were
written by people who had seen excerpts, so that no excerpt is a clean holdout; recordings of trainers are cleaner.
"""

import argparse
import json
import os
import re
import sys
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.tables import markdown
from kopt.core.workload.checkpoint import JobState, LineLabel
from kopt.data.joblogs.labelled import LabelledLog, family_of, read_logs
from kopt.models.checkpoint import line_facts as facts
from kopt.models.checkpoint.classifier import tokens as words
from kopt.models.checkpoint.classifier.lines import LineClassifier
from kopt.models.checkpoint.classifier.table import LogTable
from kopt.models.checkpoint.predictor import CheckpointPredictor
from kopt.models.checkpoint.session import Session
from kopt.training.checkpoint.default_data import RECORDED
from kopt.training.checkpoint.recipe import MADE_JOBS, answers_of
from kopt.training.checkpoint.scoring import Answer, LogRun, LogSummary, score_log, summary

_QUERY_S = 0.02
_REPEATS, _SINGLE_LINES = 5, 5000
_NAMED_WITHIN = 200
_NUMBER = re.compile(r"\d{1,12}")
_L = LineLabel
_RULES = (
    (_L.OOM, re.compile(r"out of memory|OutOfMemory|RESOURCE_EXHAUSTED", re.IGNORECASE)),
    (_L.ERROR, re.compile(r"Traceback|Error\b|Exception|FAILED|Killed|^\s+File \"", re.IGNORECASE)),
    (_L.CKPT_LOAD, re.compile(r"(load|resum|restor)\w*\b.*\b(checkpoint|model|weights|ckpt|state)", re.IGNORECASE)),
    (_L.CKPT_END, re.compile(r"\b(saved|wrote|written|finished saving|save complete)\b", re.IGNORECASE)),
    (_L.CKPT_BEGIN, re.compile(r"\b(saving|writing|save)\b.*\b(checkpoint|model|weights|ckpt|state)", re.IGNORECASE)),
    (_L.END, re.compile(r"training (is )?(complete|done|finished)|done training|finished training", re.IGNORECASE)),
    (_L.EVAL, re.compile(r"\b(eval|valid|test)\w*\b", re.IGNORECASE)),
    (_L.DATA, re.compile(r"\b(dataset|tokeniz|examples/s|dataloader)", re.IGNORECASE)),
    (_L.TRAIN_STEP, re.compile(r"\b(loss|step|epoch|iter\w*)\b.*\d|\d+%\|", re.IGNORECASE)),
)


def by_rules(log: LabelledLog) -> list[Answer]:
    """The baseline: the first expression that fits, a write from "saving" to "saved" or the next step."""
    found, writing, durable = list[Answer](), False, False
    for line in log.lines:
        label = next((label for label, rule in _RULES if rule.search(line)), _L.OTHER)
        state = JobState.TRAIN
        if label is _L.CKPT_BEGIN:
            writing, state = True, JobState.CKPT_WRITING
        elif label is _L.CKPT_END or (writing and label is _L.TRAIN_STEP):
            writing, durable, state = False, True, JobState.CKPT_DONE
        elif writing:
            state = JobState.CKPT_WRITING
        found.append((label, state, durable and not writing))
    return found


def main(arguments: Sequence[str] = ()) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folds", type=int, default=6)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    recorded = read_logs(RECORDED)
    folder = Path(os.environ.get("KOPT_DATA_DIR", "")) / "logs"
    excerpts = read_logs(folder) if "KOPT_DATA_DIR" in os.environ and folder.is_dir() else []
    if not excerpts:
        print("KOPT_DATA_DIR names no folder with logs/: recordings only")
    source = read_logs(folder / "source") if (folder / "source").is_dir() else []
    unseen = list(_unseen([*excerpts, *recorded, *source], options.folds))
    _tell_excerpts({log.name for log in excerpts}, unseen)
    _tell_source(unseen)
    _tell_recorded({log.name for log in recorded}, unseen)
    _tell_seen(excerpts, recorded)
    _tell_throughput(unseen[0][1], [*excerpts, *recorded])
    if options.out:
        _write(options.out, {log.name for log in excerpts}, unseen)
    return 0


Followed = tuple[LabelledLog, CheckpointPredictor]


def _unseen(logs: Sequence[LabelledLog], folds: int) -> Iterator[Followed]:
    """Each log beside a model that saw no log of its family; families are dealt out largest first."""
    sizes = Counter[str]()
    for log in logs:
        sizes[family_of(log.framework)] += len(log.labels)
    dealt: list[set[str]] = [set() for _ in range(folds)]
    for family, _ in sizes.most_common():
        min(dealt, key=lambda fold: sum(sizes[one] for one in fold)).add(family)
    for number, fold in enumerate(dealt, 1):
        began = time.perf_counter()
        rest = tuple(log for log in logs if family_of(log.framework) not in fold)
        model = CheckpointPredictor().fit(LogTable(rest, MADE_JOBS))
        print(f"fold {number}/{folds}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
        yield from ((log, model) for log in logs if family_of(log.framework) in fold)


def row(found: LogSummary) -> tuple[str, ...]:
    """A slice's figures under ``HEAD``."""
    return (
        found.slice,
        f"{found.macro_f1:.3f}",
        f"{found.spans_unsafe} of {found.spans}",
        f"{1 - found.unguarded:.1%}",
        f"{found.held:.1%}",
        f"{found.completions_seen:.1%}",
        f"{found.done_false:.1%}",
        f"{found.killable:.1%}",
        str(found.silent_safe),
    )


def _row(name: str, runs: Sequence[LogRun]) -> tuple[str, ...]:
    return row(summary(name, runs))


HEAD = (
    "states by",
    "macro-F1",
    "writes with a safe line",
    "guarded",
    "wrongly held",
    "completions seen",
    "false ends",
    "killable",
    "silent logs ever safe",
)


def _tell_excerpts(names: set[str], unseen: Sequence[Followed]) -> None:
    mine = [(log, score_log(log, answers_of(model, log))) for log, model in unseen if log.name in names]
    if not mine:
        return
    rules = [score_log(log, by_rules(log)) for log, _ in mine]
    print(f"Real excerpts, {len(mine)} logs, framework's family unseen:\n")
    print(markdown(HEAD, [_row("regular expressions", rules), _row("kopt", [run for _, run in mine])]))
    found = summary("all", [run for _, run in mine])
    print("\n" + ", ".join(f"{label} {value:.2f}" for label, value in found.f1.items()) + "\n")


def _tell_source(unseen: Sequence[Followed]) -> None:
    """Cycles have a line in most of their writes; logs of single statements have no writes at all."""
    mine = [(log, model) for log, model in unseen if log.source and (log.spans or log.completions)]
    if not mine:
        return
    rules = [score_log(log, by_rules(log)) for log, _ in mine]
    runs = [score_log(log, answers_of(model, log)) for log, model in mine]
    print(f"Save cycles from trainers' source, {len(mine)} logs, family unseen:\n")
    print(markdown(HEAD, [_row("regular expressions", rules), _row("kopt", runs)]) + "\n")


def _tell_recorded(names: set[str], unseen: Sequence[Followed]) -> None:
    mine = [(log, model) for log, model in unseen if log.name in names]
    rules = [score_log(log, by_rules(log)) for log, _ in mine]
    runs = [score_log(log, answers_of(model, log)) for log, model in mine]
    print(f"Recorded corpus, {len(mine)} logs, {sum(len(log.writes) for log, _ in mine)} writes, family unseen:\n")
    print(markdown(HEAD, [_row("regular expressions", rules), _row("kopt", runs)]))
    timed = [moments(log, model) for log, model in mine]
    total = Counter[str]()
    for one in timed:
        total.update(one)
    print(
        f"\nAsked every {_QUERY_S * 1000:.0f} ms: safe at {total['unsafe']} of {total['writing']} moments in writes "
        f"({total['unsafe_writes']} of {total['writes']} writes), at {total['safe'] / max(1, total['idle']):.1%} of "
        f"moments outside once a checkpoint exists. Last durable step exact before the next write: "
        f"{total['exact'] / max(1, total['told']):.1%} of {total['told']} writes of jobs whose logs tell of saves; "
        f"{total['known'] / max(1, total['knowable']):.1%} of the {total['knowable']} whose log names the step "
        f"and says anything between the end of the write and the next one.\n"
    )


def moments(log: LabelledLog, model: CheckpointPredictor) -> Counter[str]:
    """What is said between lines: every few milliseconds, in writes and outside of them, and which step is durable."""
    found = Counter[str]()
    session, read = model.session(), 0
    reader = session.read(log.lines, log.arrivals_s)
    ends = sorted((one.end_s, one.step) for one in log.writes if one.complete and one.step is not None)
    writes = sorted(log.writes, key=lambda one: one.start_s)
    bad, asked = set[int](), set[int]()
    for at_s in np.arange(log.arrivals_s[0], log.arrivals_s[-1], _QUERY_S):
        while read < len(log.lines) and log.arrivals_s[read] <= at_s:
            next(reader)
            read += 1
        inside = [n for n, one in enumerate(writes) if one.start_s <= at_s < one.end_s]
        safe = session.status(float(at_s)).safe
        if inside:
            found["writing"] += 1
            found["unsafe"] += safe
            bad.update(inside if safe else ())
        elif ends and at_s > ends[0][0]:
            found["idle"] += 1
            found["safe"] += safe
        upcoming = bisect_right([one.start_s for one in writes], at_s)
        if 0 < upcoming < len(writes) and upcoming not in asked and writes[upcoming].start_s - at_s <= _QUERY_S:
            asked.add(upcoming)
            durable = session.machine.durable
            before = [step for end_s, step in ends if end_s <= at_s]
            if durable is not None and durable.step is not None and before:
                found["told"] += 1
                found["exact"] += durable.step == before[-1]
                ended_s = max(one.end_s for one in writes[:upcoming] if one.complete and one.step is not None)
                if read and log.arrivals_s[read - 1] > ended_s and _named(log.lines[:read], before[-1]):
                    found["knowable"] += 1
                    found["known"] += durable.step == before[-1]
    found["writes"], found["unsafe_writes"] = len(writes), len(bad)
    return found


def _named(lines: Sequence[str], step: int) -> bool:
    """Whether any of the last lines names the step."""
    return any(int(number) == step for line in lines[-_NAMED_WITHIN:] for number in _NUMBER.findall(line))


def _tell_seen(excerpts: Sequence[LabelledLog], recorded: Sequence[LabelledLog]) -> None:
    """Logs left out one fifth at a time, others of their framework seen."""
    many = Counter(log.framework for log in [*excerpts, *recorded])
    runs = []
    for fold in range(5):
        out = [log for n, log in enumerate(excerpts) if n % 5 == fold]
        rest = tuple(log for log in [*excerpts, *recorded] if log not in out)
        model = CheckpointPredictor().fit(LogTable(rest, MADE_JOBS))
        runs += [score_log(log, answers_of(model, log)) for log in out if many[log.framework] > 1]
    if runs:
        print(f"Real excerpts, {len(runs)} logs of frameworks of which other logs were seen:\n")
        print(markdown(HEAD, [_row("kopt", runs)]) + "\n")


def _tell_throughput(model: CheckpointPredictor, logs: Sequence[LabelledLog]) -> None:
    """Whole sessions over all logs: by a classifier that has read nothing yet, by one that has, and line by line."""
    lines = [line for log in logs for line in log.lines]
    kinds = "nothing read before", "the same read before", "one line at a time"
    found: dict[str, list[tuple[float, float, float]]] = {kind: [] for kind in kinds}
    for _ in range(_REPEATS):
        _forget()
        classifier = LineClassifier(model.classifier.parameters)
        for kind in kinds:
            some, size = (lines[:_SINGLE_LINES], 1) if kind == kinds[-1] else (lines, 1000)
            found[kind].append(_speed(Session(classifier), some, size))
    rows = []
    for kind, runs in found.items():
        by_cpu, by_clock, p99_s = np.median(runs, axis=0)
        rows.append((kind, f"{by_cpu:,.0f}", f"{by_clock:,.0f}", f"{p99_s * 1000:.3f} ms"))
    print(f"Reading {len(lines):,} lines by batches of 1,000, one process; medians of {_REPEATS}:\n")
    print(markdown(("", "lines a second of CPU time", "of wall clock", "P99 of batches, per line"), rows))


def _speed(session: Session, lines: Sequence[str], size: int) -> tuple[float, float, float]:
    """Lines a second of this process's CPU time (all threads), of the clock, and the P99 of a batch's time per line."""
    cpu_s, began_s, took_s = time.process_time(), time.perf_counter(), list[float]()
    for start in range(0, len(lines), size):
        before_s = time.perf_counter()
        for _ in session.read(lines[start : start + size]):
            pass
        took_s.append((time.perf_counter() - before_s) / min(size, len(lines) - start))
    cpu_s, clock_s = time.process_time() - cpu_s, time.perf_counter() - began_s
    return len(lines) / cpu_s, len(lines) / clock_s, float(np.quantile(took_s, 0.99))


def _forget() -> None:
    """What all classifiers of a process share."""
    for one in (*vars(facts).values(), *vars(words).values()):
        if hasattr(one, "cache_clear"):
            one.cache_clear()


def _write(path: Path, names: set[str], unseen: Sequence[Followed]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for log, model in unseen:
            session = model.session()
            for number, label in enumerate(session.read(log.lines) if log.name in names else (), 1):
                durable = session.machine.durable
                row = {
                    "file": log.name,
                    "line": number,
                    "label": label,
                    "state": session.machine.state,
                    "safe": session.safe,
                    "last_durable_step": durable.step if durable else None,
                }
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
