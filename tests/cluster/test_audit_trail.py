"""What is recorded of writes, events and decisions, and what never is."""

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from kopt.cluster.client.resources import JOBS, SECRETS
from kopt.cluster.runtime.audit import audit_event, audit_patch, audit_write, start_audit, stop_audit
from kopt.core.audit import SealedRecord, read_record

JOB = {"metadata": {"name": "train", "namespace": "research", "uid": "5f1c"}, "spec": {"suspend": False}}


@pytest.fixture
def records() -> Iterator[list[SealedRecord]]:
    """What this process records."""
    result: list[SealedRecord] = []
    handler = start_audit("gangs", "kopt-gangs-1", result.append)
    yield result
    stop_audit(handler)


def last(records: list[SealedRecord]) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(records[-1].text)
    return result


def test_a_chain_begins_with_its_process(records: list[SealedRecord]) -> None:
    entry = read_record(records[0])
    assert (entry.kind, entry.component, entry.sequence) == ("start", "gangs", 1)
    assert entry.chain.startswith("gangs/kopt-gangs-1/")


def test_a_patch_is_recorded_with_what_it_replaces(records: list[SealedRecord]) -> None:
    audit_patch(JOBS, JOB, {"metadata": {"resourceVersion": "7"}, "spec": {"suspend": True}})
    record = last(records)
    assert record["verb"] == "patch"
    assert (record["before"], record["after"]) == ({"spec": {"suspend": False}}, {"spec": {"suspend": True}})
    assert record["object"] == {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "namespace": "research",
        "name": "train",
        "uid": "5f1c",
    }


def test_a_claim_alone_is_no_change(records: list[SealedRecord]) -> None:
    """Marking an object with the term serves the writing only."""
    audit_patch(JOBS, JOB, {})
    assert len(records) == 1


def test_secrets_are_never_recorded(records: list[SealedRecord]) -> None:
    audit_write(
        "replace", SECRETS, {"name": "key", "namespace": "kopt-system"}, after={"data": {"key": "aHVudGVyMg=="}}
    )
    changes = {"spec": {"env": [{"name": "WANDB_API_KEY", "value": "hunter2"}]}}
    audit_patch(JOBS, JOB | {"spec": {"env": [{"name": "TOKEN", "value": "hunter2"}]}}, changes)
    audit_event({"kind": "Pod", "name": "train-0"}, "Started", "Starting", "curl https://me:hunter2@store")
    logging.getLogger("kopt.decisions").info("Job a/b", extra={"decision": {"command": "--api-key hunter2"}})
    assert len(records) == 5
    assert not any("hunter2" in record.text or "aHVudGVyMg" in record.text for record in records)


def test_a_decision_names_its_object_and_models(records: list[SealedRecord]) -> None:
    decision = {"policy": "preemption", "models": [{"name": "checkpoint", "version": "7"}]}
    logging.getLogger("kopt.decisions").info("Workload %s/%s", "research", "job-a", extra={"decision": decision})
    entry = read_record(records[-1])
    assert (entry.kind, entry.verb, entry.object_kind, entry.namespace, entry.name) == (
        "decision",
        "preemption",
        "Workload",
        "research",
        "job-a",
    )
    assert entry.details["models"][0]["version"] == "7"


def test_nothing_is_recorded_where_nobody_has_begun() -> None:
    log = logging.getLogger("kopt.audit")
    assert not log.isEnabledFor(logging.CRITICAL)
    stop_audit(start_audit("gangs", "kopt-gangs-1"))
    assert not log.isEnabledFor(logging.CRITICAL)
