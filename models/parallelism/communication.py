"""How long the collectives of a training step take, by the bandwidth predictor.

Ranks lie as Megatron-LM and torchtitan lay them: tensor parallel ranks beside each other, then context, then data, and
pipeline stages farthest apart. Groups of one kind communicate at once and share the network cards of their nodes.
"""

import math
from dataclasses import dataclass

from kopt.core.hardware.bandwidth import MAX_BYTES, Collective
from kopt.core.workload.training_plan import Recompute, Sharding, TrainingPlan
from kopt.models.bandwidth.predictor import BandwidthPredictor
from kopt.models.sizing.analytic.states import held, stage_layers
from kopt.topology.graph import Machine
from kopt.topology.hardware import HardwareRow, machine_of
from kopt.topology.set_links import gpu_set


@dataclass(frozen=True)
class ClusterDescription:
    """GPUs and networks as people write them: ``H100-SXM5-80GB``, 8 in a node, ``8x NDR400 IB``.

    ``link`` is how GPUs of a node are joined where that is not usual for the model (``NV2``, ``PCIe 4``).
    """

    gpu: str
    gpus_per_node: int
    network: str = ""
    link: str = ""


@dataclass(frozen=True)
class StepCommunication:
    """Seconds on the wires, as if nothing else ran: the first five for each micro-batch, the last for each step."""

    tensor: float = 0.0
    context: float = 0.0
    expert: float = 0.0
    pipeline: float = 0.0
    sharded: float = 0.0
    """Gathering weights and scattering gradients that are sharded."""
    data: float = 0.0


class Wires:
    """Collectives on one cluster. ``bandwidth`` answers for sets of GPUs; answers are kept."""

    def __init__(self, cluster: ClusterDescription, bandwidth: BandwidthPredictor) -> None:
        self.cluster = cluster
        self._bandwidth = bandwidth
        self._kept: dict[tuple[int, int, Collective, int], float] = {}

    def seconds(self, kind: Collective, ranks: int, stride: int, message_bytes: float) -> float:
        """One collective of ``ranks`` GPUs, ``stride`` apart, while all other groups of the kind do the same.

        ``message_bytes`` is the whole buffer, as nccl-tests count it.
        """
        if ranks < 2 or message_bytes <= 0:
            return 0.0
        each_node = self.cluster.gpus_per_node
        if ranks * stride <= each_node:
            return self._of(1, ranks, kind, message_bytes)
        within = max(1, each_node // stride)
        nodes = math.ceil(ranks / within)
        if math.ceil(ranks * stride / each_node) <= self._machine(nodes).domain_nodes:
            return self._of(nodes, within, kind, message_bytes)
        if kind is Collective.SENDRECV:
            return self._of(nodes, within, kind, message_bytes * self._senders_of_a_card(nodes))
        if kind is Collective.ALL_TO_ALL:
            return self._of(nodes, each_node, kind, message_bytes)
        # Groups beside each other move as much over the cards as all the node's GPUs with a message so much larger.
        return self._of(nodes, each_node, kind, message_bytes * max(1, each_node // within))

    def domains(self, ranks: int, stride: int) -> int:
        """NVLink domains, which are nodes where nothing joins them, that a group spans."""
        nodes = math.ceil(ranks * stride / self.cluster.gpus_per_node)
        return 1 if nodes == 1 else math.ceil(nodes / self._machine(nodes).domain_nodes)

    def _machine(self, nodes: int) -> Machine:
        cluster = self.cluster
        return machine_of(HardwareRow(cluster.gpu, "", cluster.link, nodes, cluster.gpus_per_node, cluster.network))

    def _senders_of_a_card(self, nodes: int) -> float:
        """How many GPUs of a node share what one of them could use of the network."""
        together = gpu_set(self._machine(nodes), tuple(range(self.cluster.gpus_per_node)), nodes)
        return max(1.0, self.cluster.gpus_per_node * together.card_gbps / max(1e-9, together.network_gbps))

    def _of(self, nodes: int, gpus: int, kind: Collective, message_bytes: float) -> float:
        # Times are interpolated between powers of the square root of two, so that few questions are asked.
        steps = 2 * math.log2(max(256.0, min(message_bytes, MAX_BYTES)))
        low = math.floor(steps)
        first, second = (self._at(nodes, gpus, kind, step) for step in (low, low + 1))
        return math.exp(math.log(first) + (steps - low) * (math.log(second) - math.log(first)))

    def _at(self, nodes: int, gpus: int, kind: Collective, step: int) -> float:
        key = (nodes, gpus, kind, step)
        if key not in self._kept:
            size = min(MAX_BYTES, round(2 ** (step / 2)))
            selected = gpu_set(self._machine(nodes), tuple(range(gpus)), nodes)
            self._kept[key] = self._bandwidth.estimate_set(selected, kind, size).latency_us / 1e6
        return self._kept[key]


def step_communication(plan: TrainingPlan, wires: Wires) -> StepCommunication:
    """The collectives of a plan's step on the rank that has most of them."""
    parallel = plan.parallel
    tokens = plan.micro_batch * plan.sequence / parallel.context
    layers = max(len(stage_layers(plan, stage)) for stage in (0, parallel.pipeline - 1))
    sharded = parallel.sharding is Sharding.PARAMETERS
    return StepCommunication(
        _tensor(plan, wires, tokens, layers),
        _context(plan, wires, tokens, layers),
        _expert(plan, wires, tokens, layers),
        _pipeline(plan, wires, tokens),
        _gathering(plan, wires) if sharded else 0.0,
        0.0 if sharded else _gradients(plan, wires),
    )


def _tensor(plan: TrainingPlan, wires: Wires, tokens: float, layers: int) -> float:
    """Two all-reduces forward and two backward in every layer, or as many pairs of all-gather and reduce-scatter."""
    model, parallel = plan.model, plan.parallel
    if parallel.tensor < 2:
        return 0.0
    message = tokens * model.hidden * plan.compute.bytes_each
    rounds = 6 if plan.recompute is Recompute.FULL else 4
    if not parallel.sequence_parallel:
        return layers * rounds * wires.seconds(Collective.ALL_REDUCE, parallel.tensor, 1, message)
    pair = sum(
        wires.seconds(kind, parallel.tensor, 1, message) for kind in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
    )
    # The backward pass gathers each product's input once more for the gradient of its weights.
    again = wires.seconds(Collective.ALL_GATHER, parallel.tensor, 1, message)
    return layers * (rounds * pair + 2 * again)


def _context(plan: TrainingPlan, wires: Wires, tokens: float, layers: int) -> float:
    """Keys and values travel around the ring: once forward, and with their gradients backward."""
    model, parallel = plan.model, plan.parallel
    message = tokens * parallel.context * model.cache_width / parallel.tensor * plan.compute.bytes_each
    once = wires.seconds(Collective.ALL_GATHER, parallel.context, parallel.tensor, message)
    return layers * 3 * once


def _expert(plan: TrainingPlan, wires: Wires, tokens: float, layers: int) -> float:
    """Tokens go to their experts and come back, forward and backward."""
    model, parallel = plan.model, plan.parallel
    if model.experts is None or parallel.expert < 2:
        return 0.0
    with_experts = layers * (model.layers - model.experts.dense_layers) / model.layers
    stride = parallel.expert_tensor or parallel.tensor
    copies = _copies(model.experts.per_token, wires.domains(parallel.expert, stride))
    message = tokens / parallel.tensor * copies * model.hidden * plan.compute.bytes_each
    rounds = 6 if plan.recompute is Recompute.FULL else 4
    once = wires.seconds(Collective.ALL_TO_ALL, parallel.expert, stride, message)
    return with_experts * rounds * once


def _copies(per_token: int, domains: int) -> float:
    """How often a token is sent: once to every NVLink domain where one of its experts is, to each within one.

    The expected number of different domains of ``per_token`` draws; dispatchers such as DeepEP send no more.
    """
    if domains < 2:
        return float(per_token)
    return domains * (1 - (1 - 1 / domains) ** per_token)


def _pipeline(plan: TrainingPlan, wires: Wires, tokens: float) -> float:
    """A layer's output to the next stage and its gradient back, for every chunk of a rank."""
    parallel = plan.parallel
    if parallel.pipeline < 2:
        return 0.0
    message = tokens * plan.model.hidden * plan.compute.bytes_each
    message /= parallel.tensor if parallel.sequence_parallel else 1
    stride = parallel.world // parallel.pipeline
    return 2 * parallel.virtual_stages * wires.seconds(Collective.SENDRECV, 2, stride, message)


def _gathering(plan: TrainingPlan, wires: Wires) -> float:
    """Weights forward and backward, gradients once, for every micro-batch."""
    parallel = plan.parallel
    own = held(plan, 0)
    ranks, stride = parallel.shard_ranks, parallel.tensor
    weights = own.total * plan.compute.bytes_each
    gather = wires.seconds(Collective.ALL_GATHER, ranks, stride, weights)
    scatter = wires.seconds(Collective.REDUCE_SCATTER, ranks, stride, own.total * plan.gradient_bytes)
    return 2 * gather + scatter


def _gradients(plan: TrainingPlan, wires: Wires) -> float:
    """All-reduce of gradients, or reduce-scatter and an all-gather of the new weights.

    Where states are shared by fewer than all data-parallel ranks, gradients are all-reduced over all and weights
    gathered by those few. Experts are spread over ranks already: fewer hold the same one.
    """
    parallel = plan.parallel
    ranks = parallel.data * parallel.context
    own = max((held(plan, stage) for stage in (0, parallel.pipeline - 1)), key=lambda part: part.total)
    expert_ranks = max(1, parallel.expert * (parallel.expert_tensor or parallel.tensor))
    expert_copies = max(1, ranks * parallel.tensor // expert_ranks)
    total = 0.0
    for numbers, copies, stride in (
        (own.dense + own.ends, ranks, parallel.tensor),
        (own.experts, expert_copies, expert_ranks),
    ):
        gradients, weights = numbers * plan.gradient_bytes, numbers * plan.compute.bytes_each
        if parallel.sharding is Sharding.NONE or parallel.shard_ranks < ranks:
            total += wires.seconds(Collective.ALL_REDUCE, copies, stride, gradients)
            shards = min(copies, parallel.shard_ranks) if parallel.sharding is not Sharding.NONE else 1
            total += wires.seconds(Collective.ALL_GATHER, shards, stride, weights)
        else:
            total += wires.seconds(Collective.REDUCE_SCATTER, copies, stride, gradients)
            total += wires.seconds(Collective.ALL_GATHER, copies, stride, weights)
    return total
