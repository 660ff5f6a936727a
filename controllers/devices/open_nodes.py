"""Which nodes a pod may run on, kept for the pods that say the same about it: those of one job are many."""

import json
from collections.abc import Callable, Mapping

from kopt.cluster.client.resources import Key, Object
from kopt.cluster.workloads.node_selection import runs_on

Labels = tuple[dict[str, str], list[Object]]
"""Labels and taints of a node that pods may be sent to."""
_CONSTRAINTS = ("nodeSelector", "affinity", "tolerations")
_MOST_KEPT = 64
"""Pods that differ in these; an answer for each node is kept, so that it is a few megabytes in large clusters."""


class OpenNodes:
    """``nodes`` is a live view; ``changed`` says that a node has changed."""

    def __init__(self, nodes: Mapping[Key, Labels]) -> None:
        self._nodes = nodes
        self._kept: dict[str, dict[str, bool]] = {}
        """By what pods say, the last used at the end."""

    def of(self, spec: Object) -> Callable[[str], bool]:
        """Whether pods of this spec may run on a node, by its name."""
        constraints = {name: spec[name] for name in _CONSTRAINTS if spec.get(name)}
        text = json.dumps(constraints, sort_keys=True)
        answers = self._kept[text] = self._kept.pop(text, {})
        if len(self._kept) > _MOST_KEPT:
            del self._kept[next(iter(self._kept))]

        def is_open(node: str) -> bool:
            answer = answers.get(node)
            if answer is None:
                labels = self._nodes.get(("", node))
                answer = answers[node] = labels is not None and runs_on(constraints, *labels)
            return answer

        return is_open

    def changed(self, node: str) -> None:
        for answers in self._kept.values():
            answers.pop(node, None)
