"""``kopt nodes`` without a cluster: keys, signatures and what is refused before anything is sent."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from typer.testing import CliRunner, Result

from kopt.cli.main import app
from kopt.core.dsse import envelope_of
from kopt.core.node_plan.plan import NodePlan, plan_document, verified_plan
from kopt.core.node_plan.steps import MigModeStep
from kopt.core.signing_keys import public_keys


def kopt(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["nodes", *map(str, arguments)], env={"COLUMNS": "160"})


def plan(folder: Path, **fields: Any) -> Path:
    now_s = float(int(time.time()))
    written = plan_document(NodePlan("gpu-7", "uid", 3, now_s, now_s + 600, "0" * 64, (MigModeStep("GPU-a", True),)))
    path = folder / "gpu-7.plan"
    path.write_text(json.dumps(written | fields))
    return path


def test_a_plan_is_shown_and_signed_with_the_key_that_was_made(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    made = kopt("keys", "--keys", keys)
    assert made.output.startswith("-----BEGIN PUBLIC KEY-----")
    assert kopt("keys", "--keys", keys).output == made.output
    done = kopt("sign", plan(tmp_path), "--keys", keys)
    assert done.exit_code == 0, done.output
    assert "mig-mode" in done.output
    assert "on on GPU-a" in done.output
    envelope = envelope_of(json.loads((tmp_path / "gpu-7.plan.signed").read_text()))
    assert verified_plan(envelope, public_keys(keys)).sequence == 3
    assert (keys / "signing.key").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"expiresAt": 20.0, "issuedAt": 10.0}, "has expired"),
        ({"steps": [{"verb": "reboot"}]}, "none of the verbs"),
        ({"node": 7}, "no plan of"),
    ],
)
def test_what_no_executor_would_take_is_not_signed(tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    kopt("keys", "--keys", tmp_path / "keys")
    done = kopt("sign", plan(tmp_path, **fields), "--keys", tmp_path / "keys")
    assert done.exit_code == 1
    assert words in " ".join(done.output.split())
    assert not (tmp_path / "gpu-7.plan.signed").exists()


def test_without_a_key_nothing_is_signed_and_none_is_made(tmp_path: Path) -> None:
    done = kopt("sign", plan(tmp_path), "--keys", tmp_path / "keys")
    assert done.exit_code == 1
    assert "kopt nodes keys" in done.output
    assert not (tmp_path / "keys").exists()


def test_a_key_that_everybody_may_read_signs_nothing(tmp_path: Path) -> None:
    kopt("keys", "--keys", tmp_path / "keys")
    (tmp_path / "keys" / "signing.key").chmod(0o644)
    done = kopt("sign", plan(tmp_path), "--keys", tmp_path / "keys")
    assert done.exit_code == 1
    assert "chmod 600" in done.output


def test_what_is_not_signed_is_not_applied(tmp_path: Path) -> None:
    done = kopt("apply", plan(tmp_path), "--kubeconfig", tmp_path / "absent")
    assert done.exit_code == 1
    assert "no signed plan" in done.output


def test_a_public_key_of_another_verifies_nothing(tmp_path: Path) -> None:
    kopt("keys", "--keys", tmp_path / "keys")
    kopt("sign", plan(tmp_path), "--keys", tmp_path / "keys")
    envelope = envelope_of(json.loads((tmp_path / "gpu-7.plan.signed").read_text()))
    with pytest.raises(ValueError, match="trusted here"):
        verified_plan(envelope, (Ed25519PrivateKey.generate().public_key(),))
