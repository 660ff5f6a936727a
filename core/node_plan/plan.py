"""A plan for one node as it is signed: which node, in which state, until when, and the steps."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from kopt.core.dsse import Envelope, envelope_document, sign, verified
from kopt.core.node_plan.steps import Step, step_document, step_of
from kopt.core.untrusted import UnreadableError, decode_mapping, number, whole, word

PAYLOAD_TYPE = "application/vnd.kaiwo.node-plan.v1+json"
MOST_STEPS = 512
LONGEST_S = 7 * 86400.0
"""From signing to expiry."""
_NAMES = {"node", "nodeUid", "sequence", "issuedAt", "expiresAt", "stateBefore", "steps"}


@dataclass(frozen=True)
class NodePlan:
    """``state_before`` is a digest; times are Unix seconds. Each plan of a node has a higher ``sequence``."""

    node: str
    node_uid: str
    sequence: int
    issued_at_s: float
    expires_at_s: float
    state_before: str
    steps: tuple[Step, ...]


def plan_document(plan: NodePlan) -> dict[str, Any]:
    """As JSON has it."""
    return {
        "node": plan.node,
        "nodeUid": plan.node_uid,
        "sequence": plan.sequence,
        "issuedAt": plan.issued_at_s,
        "expiresAt": plan.expires_at_s,
        "stateBefore": plan.state_before,
        "steps": [step_document(step) for step in plan.steps],
    }


def plan_of(document: Mapping[str, Any]) -> NodePlan:
    """Raises UnreadableError, and its UnknownVerbError."""
    extra = document.keys() - _NAMES
    if extra:
        raise UnreadableError(f"a plan has no {', '.join(sorted(map(repr, extra)))[:80]}")
    steps = document.get("steps")
    if not isinstance(steps, list) or not 1 <= len(steps) <= MOST_STEPS:
        raise UnreadableError(f"steps is no list of 1 to {MOST_STEPS}")
    if not all(isinstance(step, dict) for step in steps):
        raise UnreadableError("a step is no object")
    issued_s, expires_s = number(document, "issuedAt"), number(document, "expiresAt")
    if not 0 < expires_s - issued_s <= LONGEST_S:
        raise UnreadableError(f"it is valid for {expires_s - issued_s:.0f} s; up to {LONGEST_S:.0f} can be")
    return NodePlan(
        word(document, "node", 253),
        word(document, "nodeUid", 64),
        whole(document, "sequence", 1),
        issued_s,
        expires_s,
        word(document, "stateBefore", 64),
        tuple(step_of(step) for step in steps),
    )


def signed_plan(plan: NodePlan, key: Ed25519PrivateKey) -> Envelope:
    """Raises SigningError where it is too long."""
    return sign(PAYLOAD_TYPE, json.dumps(plan_document(plan), sort_keys=True).encode(), key)


def verified_plan(envelope: Envelope, trusted: Iterable[Ed25519PublicKey]) -> NodePlan:
    """Raises SigningError as ``core.dsse.verified`` does, and UnreadableError for what is no plan."""
    payload = verified(envelope, PAYLOAD_TYPE, trusted)
    try:
        return plan_of(decode_mapping(payload.decode()))
    except UnicodeDecodeError:
        raise UnreadableError("its payload is not UTF-8") from None


def envelope_digest(envelope: Envelope) -> str:
    """Names an envelope: sha256 of its canonical JSON."""
    text = json.dumps(envelope_document(envelope), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
