"""Plans in files: made, shown to who signs, signed."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives import serialization

from kopt.cli.errors import Refused, usage_error
from kopt.core.dsse import Envelope, envelope_document, envelope_of
from kopt.core.node_plan.plan import NodePlan, plan_document, plan_of, signed_plan
from kopt.core.node_plan.steps import StepError, all_after, steps_between
from kopt.core.node_plan.wanted import with_layout
from kopt.core.signing_keys import PRIVATE_KEY_FILE, SigningError, signing_key
from kopt.core.untrusted import UnreadableError, decode_mapping

if TYPE_CHECKING:
    from kopt.cluster.objects.custom.node_plan import ReportedNode

_MOST_BYTES = 256 << 10


def made(node: "ReportedNode", layouts: Sequence[str], valid_s: float) -> NodePlan:
    """From the reported state of a node to ``layouts``, each GPU=LAYOUT. Raises Refused."""
    if node.state is None:
        raise Refused(f"the executor of {node.node} has reported no GPUs: see `kopt nodes status {node.node}`")
    wanted = node.state
    for text in layouts:
        which, is_pair, layout = text.partition("=")
        if not is_pair:
            usage_error(f"{text!r} is no layout; write it like 0=3g.40gb@4,2x1g.10gb", "--layout")
        try:
            wanted = with_layout(wanted, which.strip(), layout.strip())
        except StepError as error:
            usage_error(str(error), "--layout")
    try:
        steps = steps_between(node.state, wanted)
        all_after(node.state, steps)
    except StepError as error:
        raise Refused(str(error)) from error
    if not steps:
        raise Refused(f"{node.node} is already so: there is nothing to do")
    now_s = float(int(time.time()))
    return NodePlan(node.node, node.uid, node.sequence + 1, now_s, now_s + valid_s, node.state.digest, steps)


def write(path: Path, what: NodePlan | Envelope) -> None:
    """Raises OSError."""
    document = plan_document(what) if isinstance(what, NodePlan) else envelope_document(what)
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def read_plan(path: Path) -> NodePlan:
    """Raises Refused."""
    try:
        return plan_of(_document(path))
    except UnreadableError as error:
        raise Refused(f"{path} is no plan of `kopt nodes plan`: {error}") from error


def read_envelope(path: Path) -> tuple[Envelope, NodePlan]:
    """The plan in it is not verified: executors do that. Raises Refused."""
    try:
        envelope = envelope_of(_document(path))
        return envelope, plan_of(decode_mapping(envelope.payload.decode()))
    except (UnreadableError, UnicodeDecodeError) as error:
        raise Refused(f"{path} is no signed plan of `kopt nodes sign`: {error}") from error


def _document(path: Path) -> dict[str, Any]:
    if path.stat().st_size > _MOST_BYTES:
        raise UnreadableError(f"{path.stat().st_size} bytes are too many")
    return decode_mapping(path.read_text(encoding="utf-8"))


def signed(plan: NodePlan, keys: Path | None) -> Envelope:
    """Raises Refused."""
    folder = _keys(keys)
    if plan.expires_at_s <= time.time():
        raise Refused("the plan has expired; make a new one with `kopt nodes plan`")
    if not (folder / PRIVATE_KEY_FILE).exists():
        raise Refused(f"there is no {PRIVATE_KEY_FILE} in {folder}; make one with `kopt nodes keys`")
    try:
        return signed_plan(plan, signing_key(folder))
    except SigningError as error:
        raise Refused(str(error)) from error


def public_text(keys: Path | None) -> str:
    """The public key as PEM; the private one is made where there is none. Raises Refused."""
    try:
        key = signing_key(_keys(keys)).public_key()
    except SigningError as error:
        raise Refused(str(error)) from error
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo).decode()


def _keys(keys: Path | None) -> Path:
    if keys is not None:
        return keys
    from kopt.serving.base.environment import load_settings

    return load_settings().home / "node-keys"
