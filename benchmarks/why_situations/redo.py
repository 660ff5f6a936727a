"""Makes a change and checks whether the workload fits then: plain loops over the objects, nothing of the product.

Pods go to nodes one after another, the largest first, as a scheduler would bind them; a gang may not leave any of its
minimum without a node. Quota is that of flat cohorts, in which every queue may lend all it has.
"""

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.why_situations.objects import GPU, Cluster, Constructed, Object

GIB = 1 << 30
_UNITS = {"Mi": 1 << 20, "Gi": GIB, "Ti": 1 << 40}


def redone(constructed: Constructed, change: Any) -> Constructed:
    """The situation after a change (``core.scheduling.diagnosis.Change``): what has to end is gone, the patch is made
    on the Job and on all that its controllers would make of it."""
    cluster = copy.deepcopy(constructed.cluster)
    _forget(cluster, constructed.name)
    if change.names:
        _end(cluster, set(change.names))
    if change.patch:
        root = next(item for item in (*cluster.jobs, *cluster.pods) if item["metadata"]["name"] == constructed.name)
        for operation in change.patch:
            patch(root, operation)
        _remake(cluster, root, constructed.name)
    return Constructed(constructed.engine, constructed.label, cluster, constructed.accepted, constructed.name)


def all_ended(constructed: Constructed) -> Constructed:
    """The situation when everything that runs has ended."""
    cluster = copy.deepcopy(constructed.cluster)
    _forget(cluster, constructed.name)
    cluster.pods = [item for item in cluster.pods if not item["spec"].get("nodeName")]
    cluster.workloads = [item for item in cluster.workloads if "admission" not in item["status"]]
    return Constructed(constructed.engine, constructed.label, cluster, constructed.accepted, constructed.name)


def patch(document: Any, operation: Mapping[str, Any]) -> None:
    """One operation of RFC 6902: add, replace or remove."""
    steps = [step.replace("~1", "/").replace("~0", "~") for step in operation["path"].split("/")[1:]]
    parent = document
    for step in steps[:-1]:
        parent = parent[int(step)] if isinstance(parent, list) else parent[step]
    last: Any = steps[-1]
    if operation["op"] == "remove":
        del parent[int(last) if isinstance(parent, list) else last]
    elif isinstance(parent, list):
        parent.append(operation["value"]) if last == "-" else parent.insert(int(last), operation["value"])
    else:
        if operation["op"] == "replace" and last not in parent:
            raise KeyError(f"{operation['path']} is not there")
        parent[last] = operation["value"]


def fits(constructed: Constructed) -> bool:
    """Whether the workload of the situation could start."""
    cluster, name = constructed.cluster, constructed.name
    workload = next((item for item in cluster.workloads if item["metadata"]["name"] == f"job-{name}"), None)
    if workload is not None:
        return _has_quota(cluster, workload)
    pods = [item for item in cluster.pods if not item["spec"].get("nodeName") and _is_of(item, name)]
    return _have_nodes(cluster, pods, _least(cluster, pods)) and _within_limits(cluster, pods)


def _forget(cluster: Cluster, name: str) -> None:
    """What a scheduler wrote about the workload before it was changed."""
    cluster.events.clear()
    for item in cluster.pods:
        if _is_of(item, name):
            item["status"]["conditions"] = []
    for group in (*cluster.kai_groups, *cluster.volcano_groups):
        if group["metadata"]["name"] == name:
            group["status"] = {}


def _end(cluster: Cluster, names: set[str]) -> None:
    def stays(item: Object) -> bool:
        metadata = item["metadata"]
        space, keys = metadata.get("namespace", ""), [metadata["name"]]
        keys += [ref["name"] for ref in metadata.get("ownerReferences", ())]
        keys += [str(value) for value in metadata.get("annotations", {}).values()]
        return not any(f"{space}/{key}" in names for key in keys)

    cluster.pods = [item for item in cluster.pods if stays(item)]
    cluster.workloads = [item for item in cluster.workloads if stays(item)]


def _remake(cluster: Cluster, root: Object, name: str) -> None:
    """Pods and Workloads out of the changed Job."""
    if "template" not in root["spec"]:
        return
    spec, count = root["spec"]["template"]["spec"], root["spec"].get("parallelism", 1)
    own = [item for item in cluster.pods if not item["spec"].get("nodeName") and _is_of(item, name)]
    for item in own:
        item["spec"] = copy.deepcopy(spec)
    for item in own[count:]:
        cluster.pods.remove(item)
    for item in cluster.workloads:
        if item["metadata"]["name"] == f"job-{name}":
            pods = item["spec"]["podSets"][0]
            pods["template"]["spec"], pods["count"] = copy.deepcopy(spec), count
            item["spec"]["queueName"] = root["metadata"]["labels"].get("kueue.x-k8s.io/queue-name", "")
    for group in (*cluster.kai_groups, *cluster.volcano_groups):
        if group["metadata"]["name"] == name:
            group["spec"]["minMember"] = min(group["spec"]["minMember"], count)


def _is_of(pod: Object, name: str) -> bool:
    return any(ref["name"] == name for ref in pod["metadata"].get("ownerReferences", ())) or (
        pod["metadata"]["name"] == name
    )


def amounts(spec: Object) -> Counter[str]:
    """CPU in milli-cores, memory in bytes, others in units."""
    total = Counter[str]()
    for container in spec["containers"]:
        for resource, value in container["resources"]["requests"].items():
            total[resource] += _number(resource, str(value))
    return total


def _number(resource: str, value: str) -> int:
    if resource == "cpu":
        return int(value[:-1]) if value.endswith("m") else round(float(value) * 1000)
    for suffix, factor in _UNITS.items():
        if value.endswith(suffix):
            return int(float(value[: -len(suffix)]) * factor)
    return int(value)


def _have_nodes(cluster: Cluster, pods: Sequence[Object], least: int) -> bool:
    free: dict[str, Counter[str]] = {}
    for node in cluster.nodes:
        allocatable = node["status"]["allocatable"]
        free[node["metadata"]["name"]] = Counter({name: _number(name, value) for name, value in allocatable.items()})
    for item in cluster.pods:
        if where := item["spec"].get("nodeName"):
            free[where].subtract(amounts(item["spec"]) + Counter({"pods": 1}))
    bound = 0
    for item in sorted(pods, key=lambda item: -amounts(item["spec"])[GPU]):
        wanted = amounts(item["spec"]) + Counter({"pods": 1})
        open_nodes = [
            node["metadata"]["name"]
            for node in cluster.nodes
            if _is_open(cluster, node, item)
            and all(free[node["metadata"]["name"]][name] >= value for name, value in wanted.items())
        ]
        if open_nodes:
            where = min(open_nodes, key=lambda name: (free[name][GPU], name))
            free[where].subtract(wanted)
            bound += 1
    return bound >= least


def _is_open(cluster: Cluster, node: Object, pod: Object) -> bool:
    spec, labels = pod["spec"], node["metadata"]["labels"]
    if any(labels.get(key) != value for key, value in spec.get("nodeSelector", {}).items()):
        return False
    if not all(_tolerates(spec, taint) for taint in node["spec"]["taints"] if taint["effect"] != "PreferNoSchedule"):
        return False
    affinity = spec.get("affinity", {})
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    terms = affinity.get("nodeAffinity", {}).get(required, {}).get("nodeSelectorTerms", [])
    if terms and not any(
        all(labels.get(part["key"]) in part["values"] for part in term["matchExpressions"]) for term in terms
    ):
        return False
    for term in affinity.get("podAntiAffinity", {}).get(required, ()):
        wanted, key = term["labelSelector"]["matchLabels"], term["topologyKey"]
        for other in cluster.pods:
            near = other["spec"].get("nodeName")
            if (
                near
                and wanted.items() <= other["metadata"]["labels"].items()
                and _label(cluster, near, key) == labels.get(key)
            ):
                return False
    return True


def _label(cluster: Cluster, name: str, key: str) -> Any:
    return next(node["metadata"]["labels"].get(key) for node in cluster.nodes if node["metadata"]["name"] == name)


def _tolerates(spec: Object, taint: Object) -> bool:
    for toleration in spec.get("tolerations", ()):
        same_key = toleration.get("key", taint["key"]) == taint["key"]
        same_value = toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", "")
        if same_key and same_value and toleration.get("effect", taint["effect"]) == taint["effect"]:
            return True
    return False


def _least(cluster: Cluster, pods: Sequence[Object]) -> int:
    groups = {group["metadata"]["name"]: group for group in (*cluster.kai_groups, *cluster.volcano_groups)}
    for item in pods:
        for name in item["metadata"]["annotations"].values():
            if name in groups:
                return int(groups[name]["spec"]["minMember"])
    return 1


def _within_limits(cluster: Cluster, pods: Sequence[Object]) -> bool:
    """KAI's and Volcano's limits, for the GPUs of the gang's minimum."""
    queues = {item["metadata"]["name"]: item for item in (*cluster.kai_queues, *cluster.volcano_queues)}
    groups = {group["metadata"]["name"]: group for group in (*cluster.kai_groups, *cluster.volcano_groups)}

    def queue_of(item: Object) -> str:
        marks = item["metadata"]["annotations"].values()
        return next((groups[name]["spec"]["queue"] for name in marks if name in groups), "")

    def lineage(name: str) -> list[str]:
        result = []
        while name in queues:
            result.append(name)
            name = queues[name]["spec"].get("parentQueue", "") or queues[name]["spec"].get("parent", "")
        return result

    used, fixed = Counter[str](), Counter[str]()
    for item in cluster.pods:
        if item["spec"].get("nodeName"):
            for name in lineage(queue_of(item)):
                used[name] += amounts(item["spec"])[GPU]
                fixed[name] += amounts(item["spec"])[GPU] if item["spec"].get("priority", 0) >= 100 else 0
    if not pods:
        return True
    wanted = amounts(pods[0]["spec"])[GPU] * _least(cluster, pods)
    for name in lineage(queue_of(pods[0])):
        spec = queues[name]["spec"]
        gpu = spec.get("resources", {}).get("gpu", {})
        limit = gpu.get("limit", -1)
        if GPU in spec.get("capability", {}):
            limit = int(spec["capability"][GPU])
        if limit >= 0 and used[name] + wanted > limit:
            return False
        if (
            pods[0]["spec"].get("priority", 0) >= 100
            and gpu.get("quota", -1) >= 0
            and fixed[name] + wanted > gpu["quota"]
        ):
            return False
    return True


def _has_quota(cluster: Cluster, workload: Object) -> bool:
    """Whether one flavour of its queue has all it requests, and its nodes room for its pods."""
    space, local = workload["metadata"]["namespace"], workload["spec"]["queueName"]
    keys = {(item["metadata"]["namespace"], item["metadata"]["name"]): item for item in cluster.local_queues}
    if (space, local) not in keys:
        return False
    name = keys[space, local]["spec"]["clusterQueue"]
    queues = {item["metadata"]["name"]: item for item in cluster.cluster_queues}
    pods = workload["spec"]["podSets"][0]
    spec = pods["template"]["spec"]
    wanted = Counter({key: value * pods["count"] for key, value in amounts(spec).items()})
    for flavor in cluster.flavors:
        if flavor["metadata"]["name"] not in _limits(queues[name]) or not _flavor_is_open(flavor, spec):
            continue
        if all(
            _quota_left(cluster, queues, name, flavor["metadata"]["name"], key) >= value
            for key, value in wanted.items()
        ):
            selector = spec.get("nodeSelector", {}) | flavor["spec"]["nodeLabels"]
            copies = [
                {"metadata": {"annotations": {}, "labels": {}, "name": ""}, "spec": spec | {"nodeSelector": selector}}
                for _ in range(pods["count"])
            ]
            return _have_nodes(cluster, copies, pods["count"])
    return False


def _flavor_is_open(flavor: Object, spec: Object) -> bool:
    selector = spec.get("nodeSelector", {})
    labels = flavor["spec"]["nodeLabels"]
    return all(labels[key] == selector.get(key, labels[key]) for key in labels) and all(
        _tolerates(spec, taint) for taint in flavor["spec"].get("nodeTaints", ())
    )


def _limits(queue: Object) -> dict[str, dict[str, Object]]:
    group = queue["spec"]["resourceGroups"][0]
    return {flavor["name"]: {item["name"]: item for item in flavor["resources"]} for flavor in group["flavors"]}


def _quota_left(cluster: Cluster, queues: Mapping[str, Object], name: str, flavor: str, resource: str) -> int:
    def nominal(queue: str) -> int:
        item = _limits(queues[queue]).get(flavor, {}).get(resource)
        return _number(resource, item["nominalQuota"]) if item else 0

    def used(queue: str) -> int:
        total = 0
        for item in cluster.workloads:
            admission = item["status"].get("admission", {})
            for part in admission.get("podSetAssignments", ()) if admission.get("clusterQueue") == queue else ():
                if part["flavors"].get(resource) == flavor:
                    total += _number(resource, part["resourceUsage"][resource])
        return total

    cohort = queues[name]["spec"].get("cohort", "")
    if not cohort:
        return nominal(name) - used(name)
    members = [queue for queue, item in queues.items() if item["spec"].get("cohort", "") == cohort]
    left = sum(map(nominal, members)) - sum(map(used, members))
    limit = _limits(queues[name]).get(flavor, {}).get(resource, {}).get("borrowingLimit")
    return left if limit is None else min(left, nominal(name) + int(limit) - used(name))
