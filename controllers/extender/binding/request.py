"""Binding a pod, so that the API server refuses it when the pod, or the leader, is no longer what it was."""

from collections.abc import Sequence

from kopt.cluster.client.api import Kube
from kopt.cluster.client.resources import PODS, Key, Object
from kopt.cluster.objects.annotations import INDICES_ANNOTATION
from kopt.cluster.runtime.audit import audit_write
from kopt.cluster.runtime.lease import TERM_ANNOTATION, Deposed, Leader


class Binder:
    """Posts Bindings for the leader's term; ``leader`` is None where a single replica runs without a Lease."""

    def __init__(self, kube: Kube, leader: Leader | None) -> None:
        self._kube, self._leader = kube, leader

    async def pod(self, key: Key) -> Object:
        """The pod as the API server has it. Raises ApiError."""
        return await self._kube.get(PODS, key[1], key[0])

    async def bind(self, pod: Key, uid: str, node: str, gpus: Sequence[int]) -> None:
        """Raises Deposed when another leads, ApiError when the API server refuses or cannot be reached.

        The uid keeps a pod that was made anew under its name from being bound for the old one; the term keeps a
        deposed leader's Binding, sent late, from being accepted (see `fence`).
        """
        annotations = {}
        if gpus:
            annotations[INDICES_ANNOTATION] = ",".join(map(str, gpus))
        if self._leader is not None:
            if not self._leader.leading:
                raise Deposed(f"{self._leader.identity} does not hold the Lease")
            annotations[TERM_ANNOTATION] = f"{self._leader.namespace}/{self._leader.name}/{self._leader.term}"
        body: Object = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": pod[1], "namespace": pod[0], "uid": uid, "annotations": annotations},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        await self._kube.create_at(PODS, pod[0], pod[1], "binding", body)
        audit_write("bind", PODS, body["metadata"], after={"node": node, "gpus": list(gpus)})


def fence(namespace: str, lease: str, name: str = "kopt-extender-fence") -> tuple[Object, Object]:
    """An admission policy, and its binding, by which the API server itself refuses a Binding of an older term.

    A leader that was stopped past its Lease may have a request under way when it wakes, which no check of its own can
    call back. Bindings of other schedulers carry no term and are not looked at. It can refuse nothing else: without
    the Lease, or while the API server has not read it, the server would otherwise refuse every Binding in the cluster
    before it looks at the term. Only an older term is refused, never another one: an API server whose policy was once
    taken away and came back may know the Lease for ever as it was before (kubernetes/kubernetes#130887).
    """
    group = {"apiVersion": "admissionregistration.k8s.io/v1"}
    term = f"object.metadata.annotations['{TERM_ANNOTATION}']"
    policy: Object = group | {
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Ignore",
            "paramKind": {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"},
            "matchConstraints": {
                "resourceRules": [
                    {
                        "apiGroups": [""],
                        "apiVersions": ["v1"],
                        "operations": ["CREATE"],
                        "resources": ["pods/binding"],
                    }
                ]
            },
            "matchConditions": [
                {
                    "name": "by-the-extender",
                    "expression": "has(object.metadata.annotations) && "
                    f"'{TERM_ANNOTATION}' in object.metadata.annotations && "
                    f"{term}.startsWith('{namespace}/{lease}/')",
                }
            ],
            "validations": [
                {
                    "expression": f"int({term}.split('/')[2]) >= params.spec.leaseTransitions",
                    "message": "another replica of the scheduler extender leads since",
                    "reason": "Forbidden",
                }
            ],
        },
    }
    reference = {"namespace": namespace, "name": lease, "parameterNotFoundAction": "Allow"}
    use: Object = group | {
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name, "paramRef": reference, "validationActions": ["Deny"]},
    }
    return policy, use
