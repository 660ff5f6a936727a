"""Pods that are alike share an answer, and never one that another pod, place, user or moment would change."""

import base64
import copy
import json
from collections.abc import Collection, Hashable
from dataclasses import dataclass, replace
from typing import Any

from admission.workloads import Object, job, pod, review
from example_budget import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from kopt.cluster.admission.review import parse_review
from kopt.cluster.workloads.workload import NamespaceDefaults
from kopt.controllers.admission.answers import LET_THROUGH
from kopt.controllers.admission.evaluation import FixedState
from kopt.controllers.admission.handlers import Admissions
from kopt.controllers.admission.policy import ConformancePolicy, parse_policy
from kopt.core.scheduling.submission import Framework

UID = "705ab4f5-6393-11e8-b7cc-42010a800002"


def policy(**spec: Any) -> ConformancePolicy:
    wanted = {"mode": "enforce", "queues": {"default": "rest"}, "tracing": {"samplesPerThousand": 0}} | spec
    return parse_policy({"metadata": {"name": "default"}, "spec": wanted})


PACKING = {"packing": {"scheduler": "packer", "maxGpus": 1}}
GROUPS = {"groups": [{"name": "nlp", "queue": "research"}], "priorityClasses": [{"name": "high", "queue": "prod"}]}
POLICIES = (
    policy(),
    policy(queues={"default": "rest"} | GROUPS),
    policy(queues=GROUPS),
    policy(mode="observe"),
    policy(mode="annotate", queues=GROUPS),
    policy(framework="KAI"),
    policy(framework="Volcano", schedulers=PACKING),
    policy(schedulers=PACKING),
    policy(rollout={"queues": 50}),
    policy(tracing={"samplesPerThousand": 200}),
)


@dataclass
class Changing:
    """A view that changes, as the live one does, and counts how often a queue was looked for."""

    now: FixedState
    looked: int = 0
    moments: int = 0

    def change(self, now: FixedState) -> None:
        self.now, self.moments = now, self.moments + 1

    @property
    def policy(self) -> ConformancePolicy:
        return self.now.policy

    def queues(self, framework: Framework, namespace: str) -> Collection[str] | None:
        self.looked += 1
        return self.now.queues(framework, namespace)

    def version(self) -> Hashable:
        return self.moments

    def __getattr__(self, name: str) -> Any:
        return getattr(self.now, name)


def answer(admissions: Admissions, wanted: Object) -> tuple[Any, ...]:
    """Everything of an answer that may not depend on what was answered before; traces have random parts."""
    found = admissions.mutate_at_once(parse_review(json.dumps(wanted).encode()))
    assert found is not None
    traced = found.trace is not None
    return found.answer.encoded if not traced else None, found.records, traced


def born(one: Object, number: int) -> Object:
    """A review of a pod as the API server sends it: with a name, a uid and a volume of its own."""
    made = copy.deepcopy(one)
    made["metadata"] |= {"name": f"p-{number}", "managedFields": [{"time": str(number)}]}
    made["spec"]["volumes"] = [{"name": f"kube-api-access-{number}"}]
    for container in made["spec"]["containers"]:
        container["volumeMounts"] = [{"name": f"kube-api-access-{number}"}]
    return made


def test_the_second_of_two_alike_is_not_judged_again() -> None:
    view = Changing(FixedState(policy()))
    admissions = Admissions(view)
    first, second = (answer(admissions, review(born(pod("x"), number), uid=f"u-{number}")) for number in range(2))
    assert (first, view.looked) == (second, 1)
    assert b"rest" in base64.b64decode(json.loads(b"{%s}" % first[0])["patch"])


def test_what_is_no_pod_or_no_creation_is_judged_each_time() -> None:
    view = Changing(FixedState(policy()))
    admissions = Admissions(view)
    for number in range(2):
        answer(admissions, review(job("same")))
        answer(admissions, review(pod("same"), operation="UPDATE"))
        assert view.looked == 2 * (number + 1)


def test_a_pod_too_large_to_be_kept_is_answered_all_the_same() -> None:
    view = Changing(FixedState(policy()))
    admissions = Admissions(view)
    large = pod("large") | {"metadata": {"name": "large", "annotations": {"note": "x" * 20_000}}}
    assert answer(admissions, review(large)) == answer(admissions, review(large))
    assert view.looked == 2


def test_what_is_kept_has_an_end() -> None:
    view = Changing(FixedState(policy()))
    admissions = Admissions(view)
    for number in [*range(600), 0, 599]:
        labelled = pod("x") | {"metadata": {"name": "x", "labels": {"index": str(number)}}}
        answer(admissions, review(labelled))
    assert view.looked == 601, "the oldest is gone, the newest is there"


pods = st.builds(
    lambda gpus, labels, annotations, fields: (
        born(pod("x", gpus, **fields), 0) | {"metadata": {"name": "x", "labels": labels, "annotations": annotations}}
    ),
    st.sampled_from([0, 1, 1, 8]),
    st.sampled_from([{}, {}, {"kueue.x-k8s.io/queue-name": "own"}, {"kaiwo.ai/class": "inference"}]),
    st.sampled_from([{}, {}, {"kaiwo.ai/opt-out": "true"}, {"kaiwo.ai/mode": "observe"}, {"gpu-fraction": "0.5"}]),
    st.sampled_from([{}, {}, {"priorityClassName": "high"}, {"schedulerName": "theirs"}]),
)
views = st.builds(
    lambda chosen, queue, known, running: FixedState(
        chosen, {"a": NamespaceDefaults(queue)}, known and [("a", one) for one in known], running
    ),
    st.sampled_from(POLICIES),
    st.sampled_from(["", "research"]),
    st.sampled_from([None, ("rest",), ("rest", "research", "prod")]),
    st.sampled_from([(), ("packer",)]),
)
turns = st.tuples(
    st.integers(0, 1), st.sampled_from(["a", "b"]), st.sampled_from([(), ("nlp",)]), st.integers(0, 9), st.booleans()
)


@settings(max_examples=examples(300))
@given(pods, st.tuples(views, views), st.lists(turns, min_size=2, max_size=8))
def test_an_answer_never_depends_on_those_before_it(
    wanted: Object, seen: tuple[FixedState, FixedState], sequence: list[Any]
) -> None:
    view = Changing(seen[0])
    admissions = Admissions(view)
    for which, namespace, groups, number, dry_run in sequence:
        if view.now is not seen[which]:
            view.change(seen[which])
        made = review(born(wanted, number), namespace, groups=groups, uid=f"{UID}-{number}", dryRun=dry_run)
        assert answer(admissions, made) == answer(Admissions(view.now), made)


def test_a_new_policy_and_a_namespace_annotated_anew_count_at_once() -> None:
    """Neither is part of the moment: both are compared themselves."""
    view = Changing(FixedState(policy(), {"team": NamespaceDefaults("one")}))
    admissions = Admissions(view)
    found = {answer(admissions, review(pod("x")))}
    view.now = replace(view.now, namespaces={"team": NamespaceDefaults("two")})
    found.add(answer(admissions, review(pod("x"))))
    view.now = replace(view.now, policy=policy(mode="observe"))
    found.add(answer(admissions, review(pod("x"))))
    assert len(found) == 3


def test_rollouts_choose_by_name_and_samples_by_uid() -> None:
    for chosen in (policy(rollout={"queues": 50}), policy(tracing={"samplesPerThousand": 500})):
        view = FixedState(chosen)
        admissions = Admissions(view)
        made = [review(born(pod("x"), number), uid=f"{UID}-{number}") for number in range(20)]
        found = [answer(admissions, one) for one in made]
        assert found == [answer(Admissions(view), one) for one in made]
        assert len(set(found)) > 1


def test_what_is_let_through_stays_let_through() -> None:
    admissions = Admissions(FixedState(policy()))
    for _ in range(2):
        assert admissions.mutate_at_once(parse_review(json.dumps(review(pod("cpu", gpus=0))).encode())) is LET_THROUGH
