"""The extender's calls as kube-scheduler sends them (k8s.io/kube-scheduler/extender/v1): capitalised names, JSON.

A pod's manifest is decoded; the list of node names, which is most of a call, is not decoded unless it is new.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import orjson

from kopt.cluster.client.resources import Key, Object
from kopt.controllers.extender.node_list import NodeNames, WireError

MOST_SCORE = 10
_NAMES_AT = b',"Nodes":null,"NodeNames":['


@dataclass(frozen=True, slots=True)
class Offer:
    """ExtenderArgs: a pod and the nodes that the scheduler would give it."""

    pod: Object
    uid: str
    key: Key
    names: NodeNames


@dataclass(frozen=True, slots=True)
class BindCall:
    """ExtenderBindingArgs."""

    key: Key
    uid: str
    node: str


def parse_offer(body: bytes) -> Offer:
    """ExtenderArgs of a filter or prioritize call. Raises WireError."""
    # A quote inside a JSON string is escaped, so what is found is structure, never text; the last one is the list.
    at = body.rfind(_NAMES_AT)
    if at > 0 and body.endswith(b"]}"):
        document = _object(body[:at] + b"}")
        names = NodeNames(body[at + len(_NAMES_AT) - 1 : body.rindex(b"}")])
    else:
        document = _object(body)
        names = _listed(document)
    pod = document.get("Pod")
    metadata = pod.get("metadata") if isinstance(pod, dict) else None
    if not isinstance(pod, dict) or not isinstance(metadata, dict):
        raise WireError("there is no Pod with metadata in the call")
    return Offer(pod, _text(metadata, "uid"), (_text(metadata, "namespace"), _text(metadata, "name")), names)


def parse_binding(body: bytes) -> BindCall:
    """ExtenderBindingArgs. Raises WireError."""
    result = _object(body)
    call = BindCall(
        (_text(result, "PodNamespace"), _text(result, "PodName")), _text(result, "PodUID"), _text(result, "Node")
    )
    if not all((*call.key, call.uid, call.node)):
        raise WireError("a bind call needs PodNamespace, PodName, PodUID and Node")
    return call


def filter_reply(
    names: Iterable[str], refused: Mapping[str, str] | None = None, unresolvable: Mapping[str, str] | None = None
) -> bytes:
    """ExtenderFilterResult with the nodes that are left, and why the others are not."""
    return orjson.dumps(
        {
            "NodeNames": list(names),
            "FailedNodes": dict(refused or {}),
            "FailedAndUnresolvableNodes": dict(unresolvable or {}),
            "Error": "",
        }
    )


def unchanged_reply(offer: Offer) -> bytes:
    """ExtenderFilterResult with every node that was offered."""
    if offer.names.raw.startswith(b"["):
        return b'{"NodeNames":' + offer.names.raw + b',"Error":""}'
    return filter_reply(offer.names.names)


def scores_reply(names: Iterable[str], winner: str | None) -> bytes:
    """HostPriorityList: 10 for the winner, 0 for the others."""
    return orjson.dumps([{"Host": name, "Score": MOST_SCORE if name == winner else 0} for name in names])


def bind_reply(error: str = "") -> bytes:
    """ExtenderBindingResult; an error makes the scheduler bind the pod itself (``ignorable``) or try again."""
    return orjson.dumps({"Error": error})


def _listed(document: Object) -> NodeNames:
    names = document.get("NodeNames")
    if names is None:
        if document.get("Nodes") is not None:
            raise WireError("the call carries whole nodes: set nodeCacheCapable: true in the extender's configuration")
        return NodeNames.of(())
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise WireError("NodeNames is not a list of names")
    return NodeNames.of(names)


def _object(body: bytes) -> Object:
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise WireError(f"not JSON: {error}") from error
    if not isinstance(document, dict):
        raise WireError("not a JSON object")
    return document


def _text(document: Object, name: str) -> str:
    result = document.get(name)
    if result is not None and not isinstance(result, str):
        raise WireError(f"{name} is not a string")
    return result or ""
