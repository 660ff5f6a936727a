"""What binds in words, with the amounts that are wanted and free."""

from dataclasses import dataclass

from kopt.core.scheduling.diagnosis import Binding, Cause
from kopt.core.scheduling.quota import FlavorResource, ResourceGroup
from kopt.core.units import counted, format_bytes, format_gpus
from kopt.core.workload.gpu_share import CHARGE_RESOURCE
from kopt.policies.diagnosis.fitting import CPU, GPU, MEMORY, wanted_milli
from kopt.policies.diagnosis.situation import Ceiling, KueueSide, PodShape, Rule, Situation
from kopt.policies.quota import Assignment

_MOST_NAMES = 3
_UNITS = {GPU: "GPUs", CPU: "CPUs", MEMORY: "bytes"}
_IN_USE = {
    "pods": Binding.PODS_PER_NODE,
    GPU: Binding.GPUS_IN_USE,
    CPU: Binding.CPU_IN_USE,
    MEMORY: Binding.MEMORY_IN_USE,
}
_TOO_LARGE = {GPU: Binding.GPUS_TOO_MANY, CPU: Binding.CPU_TOO_LARGE, MEMORY: Binding.MEMORY_TOO_LARGE}
_RULES = {
    Binding.CORDONED: "are cordoned",
    Binding.NODE_AFFINITY: "do not match its node affinity",
    Binding.NODE_SELECTOR: "do not have the label that it selects",
    Binding.NOT_READY: "are not ready",
    Binding.POD_AFFINITY: "have no pod that it has to be near to",
    Binding.POD_ANTI_AFFINITY: "have a pod that it must not be near to",
    Binding.TAINT: "have a taint that it does not tolerate",
}


@dataclass(frozen=True)
class Shortage:
    """Of one resource: ``wanted`` by a pod, ``most`` on one node, ``total`` on all ``nodes`` that are open; ``pods``
    find room."""

    shape: PodShape
    resource: str
    wanted: int
    most: int
    total: int
    pods: int
    nodes: int


def in_use(short: Shortage) -> Cause:
    """Nodes have it, and others use it."""
    shape, code, unit = short.shape, _IN_USE.get(short.resource, Binding.RESOURCE_IN_USE), _UNITS.get(short.resource)
    share = shape.request.gpus.share / 1000 if short.resource == GPU else 1
    nodes = counted(short.nodes, "node")
    if short.resource == GPU and shape.request.gpus.count > 1 and short.total >= shape.least * short.wanted:
        message = (
            f"Each of its pods needs {short.wanted} GPUs on one node; the {nodes} open to it "
            f"{'has' if short.nodes == 1 else 'have'} {short.total} free, at most {short.most} on one."
        )
        return Cause(Binding.GPUS_FRAGMENTED, message, short.wanted, short.most, "GPUs", shape.name)
    wanted, most = (_amount(short.resource, value * share) for value in (short.wanted, short.most))
    if shape.least > 1:
        message = (
            f"{shape.least} pods with {wanted} each have to start together; {nodes} open to it "
            f"{'has' if short.nodes == 1 else 'have'} room for {short.pods}."
        )
        return Cause(
            code,
            message,
            _scaled(short.resource, shape.least * short.wanted * share),
            _scaled(short.resource, short.pods * short.wanted * share),
            unit or short.resource,
            shape.name,
        )
    message = f"It needs {wanted} on one node; of {nodes} open to it the best has {most} free."
    return Cause(
        code,
        message,
        _scaled(short.resource, short.wanted * share),
        _scaled(short.resource, short.most),
        unit or short.resource,
        shape.name,
    )


def too_large(short: Shortage) -> Cause:
    """Not even empty nodes have it."""
    shape, code = short.shape, _TOO_LARGE.get(short.resource, Binding.RESOURCE_IN_USE)
    nodes = counted(short.nodes, "node")
    pods = shape.least if short.wanted <= short.most else 1
    wanted, most = short.wanted * pods, short.total if pods > 1 else short.most
    has = "has" if short.nodes == 1 else "have"
    where = f"{nodes} open to it {has} {_amount(short.resource, most)} in all" if pods > 1 else None
    where = where or f"of {nodes} open to it the largest has {_amount(short.resource, most)}"
    message = f"It needs {_amount(short.resource, wanted)}{'' if pods > 1 else ' on one node'}; {where}, in use or not."
    unit = _UNITS.get(short.resource, short.resource)
    return Cause(code, message, _scaled(short.resource, wanted), _scaled(short.resource, most), unit, shape.name)


def absent(shape: PodShape) -> Cause:
    message = f"It requests {shape.resource}, and no node has any."
    return Cause(Binding.GPU_ABSENT, message, shape.request.gpus.count, 0, "GPUs", shape.resource)


def rule(rule: Rule) -> Cause:
    nodes = int(rule.excluded.sum())
    message = f"{counted(nodes, 'node')} {_RULES[rule.code]}: {rule.name}."
    return Cause(
        rule.code,
        message if nodes != 1 else message.replace(" are ", " is ").replace(" have ", " has "),
        nodes,
        None,
        "nodes",
        rule.name,
    )


def ceiling(limit: Ceiling, situation: Situation) -> Cause:
    wanted = wanted_milli(situation)
    verb = "may use at most" if limit.code is Binding.QUEUE_LIMIT else "has a quota, which such workloads keep to, of"
    message = f"It needs {_gpus(wanted)}; queue {limit.queue} {verb} {_gpus(limit.limit)} and uses {_gpus(limit.used)}."
    return Cause(limit.code, message, wanted / 1000, max(0, limit.limit - limit.used) / 1000, "GPUs", limit.queue)


def quota(code: Binding, node: str, flavor_resource: FlavorResource, amount: int, free: int) -> Cause:
    """``amount`` and ``free`` in thousandths of a unit."""
    flavor, resource = flavor_resource
    holder = node.replace("cohort/", "cohort ", 1) if node.startswith("cohort/") else f"queue {node}"
    wanted, has = (_quantity(resource, value) for value in (amount, free))
    phrase = {
        Binding.QUOTA_TOO_SMALL: f"{holder} can never give more than {has} of flavor {flavor}",
        Binding.QUOTA_IN_USE: f"the quota of {holder} has {has} of flavor {flavor} left",
        Binding.BORROWING_LIMIT: f"{holder} may borrow only so much that {has} of flavor {flavor} are left",
        Binding.COHORT_IN_USE: f"{holder} has {has} of flavor {flavor} left, as others use the rest",
    }[code]
    return Cause(code, f"It needs {wanted}; {phrase}.", amount / 1000, free / 1000, _unit(resource), f"{node} {flavor}")


def no_quota(side: KueueSide, resource: str, amount: int) -> Cause:
    """``amount``: thousandths of a unit of what it is charged, also for shares by claims."""
    charged = _quantity(resource, amount)
    what = f"Its shares of GPUs are charged as {charged}" if resource == CHARGE_RESOURCE else f"It needs {charged}"
    message = f"{what}, for which queue {side.queue} has no quota."
    return Cause(Binding.QUOTA_ABSENT, message, amount / 1000, 0, _unit(resource), side.queue)


def no_flavor(situation: Situation, side: KueueSide, group: ResourceGroup) -> Cause:
    rules = {rule.name: rule for shape in situation.shapes for rule in shape.rules if rule.flavors}
    names = ", ".join(list(rules)[:_MOST_NAMES]) or "its pods"
    message = f"None of the flavors of queue {side.queue} ({', '.join(group.flavors)}) is open to it: {names}."
    return Cause(Binding.FLAVOR_EXCLUDED, message, None, None, "", side.queue)


def ahead(side: KueueSide) -> Cause:
    names = _listed(side.ahead)
    message = (
        f"Its quota is free, and queue {side.queue} admits strictly in order: it is number {side.rank}, after {names}."
    )
    return Cause(Binding.QUEUE_ORDER, message, side.rank, 1, "position", side.queue)


def preempts(assignment: Assignment) -> Cause:
    names = _listed(tuple(victim.name for victim in assignment.victims))
    return Cause(Binding.PREEMPTS, f"Kueue may preempt {names} for it.", len(assignment.victims), None, "workloads")


def fits_now(situation: Situation) -> Cause:
    by = "the scheduler has not reached it yet" if situation.fleet is not None else "nothing that can be read binds"
    return Cause(Binding.FITS_NOW, f"It fits now by what can be read here; {by}.")


def _listed(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


def _gpus(milli: int) -> str:
    return f"{format_gpus(milli)} GPU{'' if 0 < milli <= 1000 else 's'}"


def _unit(resource: str) -> str:
    if resource.endswith("/gpu") or "/mig-" in resource:
        return "GPUs"
    return {"cpu": "CPUs", "memory": "bytes"}.get(resource, resource)


def _quantity(resource: str, thousandths: int) -> str:
    if resource == "memory":
        return f"{format_bytes(thousandths // 1000)} of memory"
    unit = _unit(resource)
    if unit == "GPUs":
        return _gpus(thousandths)
    return f"{format_gpus(thousandths)} {unit}"


def _amount(resource: str, value: float) -> str:
    if resource == GPU:
        return _gpus(round(1000 * value))
    if resource == CPU:
        return f"{format_gpus(round(value))} CPUs"
    if resource == MEMORY:
        return f"{format_bytes(round(value))} of memory"
    return f"{value:g} {resource}"


def _scaled(resource: str, value: float) -> float:
    return value / 1000 if resource == CPU else value
