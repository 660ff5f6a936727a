"""How much of the figures of ``benchmarks.checkpoint`` is luck: families dealt anew, and fitted with another seed.

    python -m benchmarks.checkpoint_seeds [--seeds 3] [--folds 6] [--other FOLDER]

With each seed, families of frameworks are dealt into folds at random, and each log is followed by a model that saw no
log of its family. ``--other`` names a folder with further save cycles (``cycles.jsonl``, ``statements.jsonl``) of
trainers that nothing was learned from or chosen by; a model of all other logs is asked about them. ``--models`` keeps
fitted models in a folder and uses those that are there. The worst seed stands in the last row of each table.
"""

import argparse
import os
import random
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.checkpoint import HEAD, Followed, row
from benchmarks.tables import markdown
from kopt.data.joblogs.labelled import LabelledLog, family_of, read_logs
from kopt.models.checkpoint.classifier.settings import FitSettings
from kopt.models.checkpoint.classifier.table import LogTable
from kopt.models.checkpoint.predictor import CheckpointPredictor
from kopt.training.checkpoint.default_data import RECORDED
from kopt.training.checkpoint.recipe import MADE_JOBS, answers_of
from kopt.training.checkpoint.scoring import LogRun, LogSummary, score_log, summary

_LARGER_IS_WORSE = frozenset({"spans_unsafe", "unguarded", "held", "done_false", "silent_safe"})
_WORST = "worst"


def main(arguments: Sequence[str] = ()) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--folds", type=int, default=6)
    parser.add_argument("--other", type=Path)
    parser.add_argument("--models", type=Path)
    options = parser.parse_args(arguments)
    folder = Path(os.environ.get("KOPT_DATA_DIR", "")) / "logs"
    kinds = {"recorded corpus": read_logs(RECORDED)}
    if "KOPT_DATA_DIR" in os.environ and folder.is_dir():
        kinds = {"excerpts": read_logs(folder), "save cycles": read_logs(folder / "source"), **kinds}
    logs = [log for kind in kinds.values() for log in kind]
    kind_of = {log.name: kind for kind, group in kinds.items() for log in group}
    other = read_logs(options.other) if options.other else []
    runs: dict[str, list[list[LogRun]]] = defaultdict(list)
    for seed in range(options.seeds):
        by_kind: dict[str, list[LogRun]] = defaultdict(list)
        for log, model in _unseen(logs, options.folds, seed, options.models):
            if kind_of[log.name] != "save cycles" or log.spans or log.completions:
                by_kind[kind_of[log.name]].append(score_log(log, answers_of(model, log)))
        if other:
            model = _fitted(tuple(logs), seed, options.models and options.models / f"{seed}-all")
            by_kind["other trainers"] = [score_log(log, answers_of(model, log)) for log in other]
        for kind, mine in by_kind.items():
            runs[kind].append(mine)
    for kind, by_seed in runs.items():
        print(f"\n{kind}, {len(by_seed[0])} logs, family unseen, by seed:\n")
        found = [summary(str(seed), mine) for seed, mine in enumerate(by_seed)]
        print(markdown(HEAD, [*map(row, found), row(_worst(found))]))
        print(f"\n{kind}, by family, all seeds, where something is missed:\n")
        print(markdown(HEAD, list(_families([run for mine in by_seed for run in mine]))))
    return 0


def _fitted(logs: tuple[LabelledLog, ...], seed: int, kept: Path | None) -> CheckpointPredictor:
    if kept and (kept / "lines.safetensors").exists():
        return CheckpointPredictor.load(kept)
    began_s = time.perf_counter()
    model = CheckpointPredictor(FitSettings(seed=seed)).fit(LogTable(logs, MADE_JOBS))
    print(f"seed {seed}: {time.perf_counter() - began_s:.0f} s", file=sys.stderr, flush=True)
    if kept:
        kept.mkdir(parents=True, exist_ok=True)
        model.save(kept)
    return model


def _unseen(logs: Sequence[LabelledLog], folds: int, seed: int, kept: Path | None) -> Iterator[Followed]:
    families = sorted({family_of(log.framework) for log in logs})
    random.Random(seed).shuffle(families)
    for number in range(folds):
        fold = set(families[number::folds])
        rest = tuple(log for log in logs if family_of(log.framework) not in fold)
        model = _fitted(rest, seed, kept and kept / f"{seed}-{number + 1}-of-{folds}")
        yield from ((log, model) for log in logs if family_of(log.framework) in fold)


def _worst(found: Sequence[LogSummary]) -> LogSummary:
    """Of each figure the worst."""
    figures = [one.metrics() for one in found]
    names = figures[0].keys() - {"spans"}
    worst = {name: (max if name in _LARGER_IS_WORSE else min)(figure[name] for figure in figures) for name in names}
    counts = {name: int(worst.pop(name)) for name in ("spans_unsafe", "silent_safe")}
    return LogSummary(_WORST, found[0].services, spans=found[0].spans, **counts, **worst)


def _families(runs: Sequence[LogRun]) -> Iterator[tuple[str, ...]]:
    by_family: dict[str, list[LogRun]] = defaultdict(list)
    for run in runs:
        by_family[family_of(run.framework)].append(run)
    for family, mine in sorted(by_family.items()):
        found = summary(family, mine)
        missed = found.completions_seen < 0.9 and any(run.completions for run in mine)
        if found.spans_unsafe or found.silent_safe or found.unguarded > 0.1 or found.done_false > 0.1 or missed:
            yield row(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
