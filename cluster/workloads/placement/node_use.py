"""The use of nodes over a window, from recorded sums in Prometheus."""

import math
from collections.abc import Iterable

from kopt.core.hardware.node_selection import UtilisationHistory


def usage_query(window_s: float) -> str:
    """The mean share of each node's GPUs that computed. What has no pod has no recorded use: a node that held nothing
    in the window was idle, one that held GPUs and has no use is not measured."""
    over = f"[{int(window_s)}s]"
    installed = f"sum_over_time(node:kopt_gpus_installed:sum{over})"
    held = f"(sum_over_time(node:kopt_gpus_allocated:sum{over}) > 0)"
    busy = f"(sum_over_time(node:kopt_gpu_busy_ratio:sum{over}) or (0 * {installed} unless on (node) {held}))"
    return f"sum by (node) ({busy}) / sum by (node) ({installed})"


def history_of(series: Iterable[tuple[dict[str, str], float]], window_s: float) -> UtilisationHistory:
    """From the answer to `usage_query`."""
    known = {labels.get("node", ""): share for labels, share in series if math.isfinite(share)}
    return UtilisationHistory(window_s, {node: min(1.0, max(0.0, share)) for node, share in known.items() if node})
