"""Plans that somebody forged, changed, replayed or grew, and a journal that somebody prepared: nothing is changed."""

import base64
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nvml_standin.devices import Devices, load
from nvml_standin.executors import NOW_S, OWN, Node

from kopt.agents.node_executor.executor import OwnNode, Phase
from kopt.agents.node_executor.journal import Journal, JournalError
from kopt.agents.runtime.checked_lines import checked_line
from kopt.core.dsse import envelope_document, pre_authentication_encoding, sign
from kopt.core.node_plan.plan import PAYLOAD_TYPE, plan_document, signed_plan
from kopt.core.signing_keys import key_id

Object = dict[str, Any]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    devices = Devices(tmp_path / "devices")
    for name, value in devices.environment.items():
        monkeypatch.setenv(name, value)
    return Node(tmp_path, devices, load())


def document(node: Node) -> Object:
    return node.signed(node.mode(0, enabled=True), node.create(0, "7g.80gb", 0))


def refused(node: Node, document: object, code: str, own: OwnNode = OWN) -> None:
    before = node.devices.content()
    outcome = node.handle(document, own)
    assert (outcome.phase, outcome.reason.code) == (Phase.REFUSED, code)
    assert len(outcome.reason.message) <= 500
    assert node.devices.content() == before
    assert node.devices.state.calls == 0
    assert not outcome.sequence


def payload_signed(node: Node, payload: bytes, kind: str = PAYLOAD_TYPE) -> Object:
    return envelope_document(sign(kind, payload, node.key))


def test_the_honest_plan_is_applied(node: Node) -> None:
    assert node.handle(document(node)).phase is Phase.APPLIED


def test_a_plan_of_another_key_under_the_name_of_a_trusted_one(node: Node) -> None:
    plan = node.plan(node.mode(0, enabled=True))
    forged = envelope_document(signed_plan(plan, Ed25519PrivateKey.generate()))
    refused(node, forged, "NODE_PLAN_UNKNOWN_KEY")
    forged["signatures"][0]["keyid"] = key_id(node.key.public_key())
    refused(node, forged, "NODE_PLAN_FORGED")


@pytest.mark.parametrize(
    "signatures", [[], None, "x", [None], [{"keyid": "", "sig": ""}] * 9, [{"keyid": 1, "sig": 2}]]
)
def test_a_plan_without_signatures_that_can_be_read(node: Node, signatures: object) -> None:
    refused(node, document(node) | {"signatures": signatures}, "NODE_PLAN_UNREADABLE")


def test_a_plan_whose_steps_were_changed_after_it_was_signed(node: Node) -> None:
    signed = document(node)
    plan = json.loads(base64.b64decode(signed["payload"]))
    plan["steps"][1]["start"] = 4
    signed["payload"] = base64.b64encode(json.dumps(plan).encode()).decode()
    refused(node, signed, "NODE_PLAN_FORGED")


def test_a_document_that_was_signed_as_something_else(node: Node) -> None:
    plan = json.dumps(plan_document(node.plan(node.mode(0, enabled=True)))).encode()
    other = "application/vnd.in-toto+json"
    signed = payload_signed(node, plan, other)
    refused(node, signed, "NODE_PLAN_WRONG_TYPE")
    refused(node, signed | {"payloadType": PAYLOAD_TYPE}, "NODE_PLAN_FORGED")


def test_a_type_that_runs_into_the_payload_is_not_the_same_message() -> None:
    assert pre_authentication_encoding("a b", b"c") != pre_authentication_encoding("a", b"b c")
    # The example of the specification.
    example = pre_authentication_encoding("http://example.com/HelloWorld", b"hello world")
    assert example == b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"


def test_a_signature_of_a_model_with_the_same_key_signs_no_plan(node: Node) -> None:
    signed = document(node)
    payload = base64.b64decode(signed["payload"])
    signed["signatures"][0]["sig"] = base64.b64encode(node.key.sign(payload)).decode()
    refused(node, signed, "NODE_PLAN_FORGED")


def test_a_plan_of_another_node_and_of_an_earlier_node_of_the_same_name(node: Node) -> None:
    signed = document(node)
    refused(node, signed, "NODE_PLAN_WRONG_NODE", OwnNode("gpu-8", OWN.uid))
    refused(node, signed, "NODE_PLAN_WRONG_NODE", OwnNode(OWN.name, "another-uid"))


def test_a_plan_that_is_written_again_after_another(node: Node) -> None:
    first = node.signed(node.mode(0, enabled=True))
    assert node.handle(first).phase is Phase.APPLIED
    second = node.signed(node.mode(0, enabled=False), sequence=2)
    assert node.handle(second).phase is Phase.APPLIED
    # The state is the one that the first was made for.
    node.devices.reset_faults()
    refused(node, first, "NODE_PLAN_REPLAYED")
    again = json.loads(json.dumps(first))
    again["signatures"].append({"keyid": "0" * 16, "sig": base64.b64encode(bytes(64)).decode()})
    refused(node, again, "NODE_PLAN_REPLAYED")


@pytest.mark.parametrize(
    "step",
    [
        {"verb": "shell", "command": "reboot"},
        {"verb": "mig-mode ", "gpu": "GPU-0", "enabled": True},
        {"verb": "MIG-MODE", "gpu": "GPU-0", "enabled": True},
        {"verb": "cordon"},
        {"verb": "__class__"},
    ],
)
def test_a_verb_that_is_not_in_the_list(node: Node, step: Object) -> None:
    plan = plan_document(node.plan(node.mode(0, enabled=True)))
    plan["steps"].append(step)
    refused(node, payload_signed(node, json.dumps(plan).encode()), "NODE_PLAN_UNKNOWN_VERB")


@pytest.mark.parametrize(
    "change",
    [
        {"steps": []},
        {"steps": [{"verb": "mig-mode", "gpu": "GPU-0", "enabled": 1}]},
        {"steps": [{"verb": "mig-mode", "gpu": "GPU-0", "enabled": True, "then": "reboot"}]},
        {"steps": [{"verb": "mig-create", "gpu": "GPU-0", "profile": "1g.10gb", "start": -1}]},
        {"steps": [{"verb": "compute-partition", "gpu": "GPU-0", "mode": "CPX; reboot"}]},
        {"steps": [{"verb": "mig-mode", "gpu": "GPU-0", "enabled": True}] * 513},
        {"sequence": 1.5},
        {"sequence": True},
        {"sequence": 0},
        {"expiresAt": NOW_S + 365 * 86400},
        {"expiresAt": "tomorrow"},
        {"stateBefore": None},
        {"force": True},
    ],
)
def test_a_signed_plan_with_fields_that_no_plan_has(node: Node, change: Object) -> None:
    plan = plan_document(node.plan(node.mode(0, enabled=True))) | change
    refused(node, payload_signed(node, json.dumps(plan).encode()), "NODE_PLAN_UNREADABLE")


@pytest.mark.parametrize(
    "payload", [b"", b"\xff\xfe", b"[]", b"null", b'{"steps":' + b"[" * 60000 + b"]" * 5000, b'{"sequence": 1e999}']
)
def test_signed_bytes_that_are_no_plan(node: Node, payload: bytes) -> None:
    refused(node, payload_signed(node, payload[: 64 << 10]), "NODE_PLAN_UNREADABLE")


@pytest.mark.parametrize("size", [64 << 10, 16 << 20])
def test_a_huge_payload_is_not_even_decoded(node: Node, size: int) -> None:
    signed = document(node)
    signed["payload"] = base64.b64encode(bytes(size + 3)).decode()
    refused(node, signed, "NODE_PLAN_UNREADABLE")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=20),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["payload", "payloadType", "signatures", "keyid", "sig"]), inner, max_size=5
            )
        ),
        max_leaves=12,
    )
)
def test_whatever_stands_there_is_refused_with_a_reason(node: Node, written: object) -> None:
    refused(node, written, "NODE_PLAN_UNREADABLE")


def test_a_sequence_does_not_come_back_with_an_emptied_object(node: Node) -> None:
    first = node.signed(node.mode(0, enabled=True))
    node.handle(first)
    node.handle(node.signed(node.mode(0, enabled=False), sequence=9))
    node.devices.reset_faults()
    refused(node, node.signed(node.mode(0, enabled=True), sequence=9), "NODE_PLAN_REPLAYED")


def closed(node: Node, words: str) -> None:
    before = node.devices.content()
    with pytest.raises(JournalError, match=words):
        node.handle(document(node))
    assert node.devices.content() == before


@pytest.mark.parametrize("name", ["journal", "lock"])
def test_a_journal_that_is_a_link_is_not_written_through(node: Node, tmp_path: Path, name: str) -> None:
    target = tmp_path / "passwd"
    target.write_text("root\n")
    node.journal.mkdir(mode=0o700)
    (node.journal / name).symlink_to(target)
    closed(node, "without following links")
    assert target.read_text() == "root\n"


def test_a_journal_with_a_second_name_a_pipe_and_a_folder_that_is_a_link(node: Node, tmp_path: Path) -> None:
    target = tmp_path / "passwd"
    target.write_text("root\n")
    node.journal.mkdir(mode=0o700)
    os.link(target, node.journal / "journal")
    closed(node, "no plain file of its own")
    (node.journal / "journal").unlink()
    os.mkfifo(node.journal / "journal")
    closed(node, "no plain file of its own")
    (node.journal / "journal").unlink()
    (node.journal / "lock").unlink()
    node.journal.rmdir()
    (tmp_path / "elsewhere").mkdir()
    node.journal.symlink_to(tmp_path / "elsewhere")
    closed(node, "no folder for a journal")
    assert target.read_text() == "root\n"
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_journal_that_others_may_write(node: Node) -> None:
    node.journal.mkdir(mode=0o700)
    node.journal.chmod(0o777)
    closed(node, "could have been written by others")
    node.journal.chmod(0o700)
    (node.journal / "journal").write_bytes(b"")
    (node.journal / "journal").chmod(0o666)
    closed(node, "could have been written by others")


@pytest.mark.parametrize(
    "content",
    [
        b"garbage\ngarbage\n",
        checked_line(["run", "reboot"]),
        checked_line(["plan", "d", 1, {}, {"vendor": "other", "gpus": []}]),
        checked_line(["step", 0]),
        bytes(2 << 20),
    ],
    ids=["damaged", "unknown", "no-state", "no-plan", "long"],
)
def test_a_journal_with_events_that_nobody_wrote(node: Node, content: bytes) -> None:
    node.journal.mkdir(mode=0o700)
    (node.journal / "journal").write_bytes(content)
    (node.journal / "journal").chmod(0o600)
    closed(node, "journal")


def test_a_line_that_was_changed_in_the_middle_closes_the_executor(node: Node) -> None:
    node.handle(document(node))
    journal = node.journal / "journal"
    content = bytearray(journal.read_bytes())
    content[content.index(b"step") + 1] ^= 1
    journal.write_bytes(content)
    node.devices.reset_faults()
    with pytest.raises(JournalError, match="damaged"):
        node.recover()


def test_two_executors_do_not_share_a_node(node: Node) -> None:
    with Journal.alone(node.journal), pytest.raises(JournalError, match="another executor"):
        node.handle(document(node))


def test_an_unfinished_journal_with_a_plan_that_nobody_signed_is_undone_and_not_gone_on_with(node: Node) -> None:
    before = node.hardware.read()
    plan = replace(node.plan(node.mode(0, enabled=True)), sequence=5)
    envelope = signed_plan(plan, Ed25519PrivateKey.generate())
    with Journal.alone(node.journal) as journal:
        journal.begin("forged", 5, envelope_document(envelope), before)
    outcome = node.recover()
    assert outcome is not None
    assert (outcome.phase, outcome.reason.code) == (Phase.ROLLED_BACK, "NODE_PLAN_INTERRUPTED")
    assert node.hardware.read() == before


def test_the_private_key_stands_in_no_output(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from typer.testing import CliRunner

    from kopt.cli.main import app

    result = CliRunner().invoke(app, ["nodes", "keys", "--keys", str(tmp_path / "keys")])
    assert result.exit_code == 0
    secret = (tmp_path / "keys" / "signing.key").read_text()
    assert (tmp_path / "keys" / "signing.key").stat().st_mode & 0o077 == 0
    assert "BEGIN PUBLIC KEY" in result.output
    for line in secret.splitlines()[1:-1]:
        assert line not in result.output + caplog.text
