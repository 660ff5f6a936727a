"""A tree of 1,000 queues compiled for each engine and held against what is in the cluster: ``kopt queues plan`` and the
difference that ``apply`` shows, without the API server. Processor time, as other processes share the machine; for scale
stands beside it what reading the same manifests as YAML costs. Prints Markdown; returns 1 when the target is missed.

    python -m benchmarks queues
"""

import copy
import statistics
import time
from collections.abc import Callable, Mapping

import yaml

from benchmarks.tables import markdown
from kopt.cluster.objects.custom.kaiwo_queue import queue_document, queue_of
from kopt.core.scheduling.queue_tree import CPU, DEFAULT_POOL, GPU, MEMORY, Engine, KaiwoQueue, Share
from kopt.core.units import GIB
from kopt.policies.queues import QueueTree, compile_tree
from kopt.policies.queues.differences import Action, change_of

DEPARTMENTS, LEAVES, ROUNDS, TARGET_MS = 50, 950, 21, 50.0
_Key = tuple[str, str]


def main() -> int:
    """Print the table; 0 when every engine stays below the target."""
    queues = forest()
    rows, worst = [], 0.0
    for engine in Engine:
        live = {_key(item): copy.deepcopy(item) for item in compile_tree(QueueTree.of(queues), engine).objects}
        taken = [_cpu_ms(lambda engine=engine, live=live: compared(queues, engine, live)) for _ in range(ROUNDS)]
        worst = max(worst, statistics.median(taken))
        rows.append((f"compile and compare, {engine.value}", str(len(live)), f"{statistics.median(taken):.1f}"))
    text = yaml.safe_dump_all(map(queue_document, queues))
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    read = _cpu_ms(lambda: [queue_of(document) for document in yaml.load_all(text, loader)])
    rows.append(("read the manifests as YAML", str(len(queues)), f"{read:.1f}"))
    print(markdown([f"{len(queues):,} queues", "objects", f"CPU ms (goal < {TARGET_MS:g})"], rows))
    return 0 if worst < TARGET_MS else 1


def forest() -> list[KaiwoQueue]:
    """Departments of 400 GPUs with nineteen queues each."""
    shares = {
        GPU: Share(8000, 16_000, 50_000, 2000),
        CPU: Share(64_000, 128_000),
        MEMORY: Share(512 * GIB * 1000),
    }
    departments = [
        KaiwoQueue(f"department-{number}", pools={DEFAULT_POOL: {GPU: Share(400_000)}}) for number in range(DEPARTMENTS)
    ]
    leaves = [
        KaiwoQueue(f"team-{number}", f"department-{number % DEPARTMENTS}", pools={DEFAULT_POOL: shares})
        for number in range(LEAVES)
    ]
    return [*departments, *leaves]


def compared(queues: list[KaiwoQueue], engine: Engine, live: Mapping[_Key, dict[str, object]]) -> int:
    """How many objects would change."""
    compiled = compile_tree(QueueTree.of(queues), engine)
    changes = [change_of(item, live.get(_key(item)), "kopt-queues") for item in compiled.objects]
    return sum(change.action is not Action.KEEP for change in changes)


def _key(document: Mapping[str, object]) -> _Key:
    metadata = document["metadata"]
    assert isinstance(metadata, dict)
    return str(document["kind"]), str(metadata["name"])


def _cpu_ms(run: Callable[[], object]) -> float:
    before = time.process_time()
    run()
    return 1000 * (time.process_time() - before)
