"""Every reason code that the source can give is explained, in the area that gives it, and nothing else is."""

from pathlib import Path

import pytest
from documents import ROOT
from raised_codes import RaisedCodes

from kopt.controllers.preemption.planner import LAPSED
from kopt.core.reason_codes.catalogue import Meaning, areas, page_of, reason_codes
from kopt.core.scheduling.diagnosis import Binding
from kopt.core.scheduling.eviction import Phase
from kopt.core.scheduling.workload_class import RULE_CODES
from kopt.policies.admission.queue import Source
from kopt.policies.placement.feasible import Refusal
from kopt.policies.preemption.decision import PreemptionAction
from kopt.training.demand.resampling import ACCURACY, LENDING, SAFETY

AREAS = {
    "admission": ("policies/admission", "controllers/admission"),
    "autoscaling": ("controllers/autoscaling",),
    "bandwidth": (
        "models/bandwidth",
        "topology",
        "serving/bandwidth",
        "serving/pairwise",
        "serving/client/fallback_bandwidth",
    ),
    "capacity": ("policies/capacity", "cli/cluster/queueing/capacity", "simulator/what_if"),
    "checkpoint": ("models/checkpoint", "serving/checkpoint"),
    "classes": ("core/scheduling/classify",),
    "command": ("formats/entrypoint", "formats/trainers"),
    "demand": ("models/demand", "features", "serving/demand", "serving/client/fallback_demand", "serving/client/gpus"),
    "reservations": ("policies/reservations", "controllers/reservations", "benchmarks/reservations"),
    "devices": ("controllers/devices",),
    "fractions": (
        "policies/fractions",
        "controllers/admission/shares",
        "controllers/admission/handlers",
        "cli/sharing",
    ),
    "gangs": ("policies/gangs", "controllers/gangs", "benchmarks/gangs"),
    "lending": ("policies/lending", "controllers/lending", "dashboard/pages/lending"),
    "nodes": ("agents/node_executor",),
    "parallelism": ("models/parallelism",),
    "placement": ("policies/placement", "controllers/extender"),
    "preemption": ("policies/preemption", "controllers/preemption"),
    "queues": ("policies/queues", "policies/priority"),
    "replicas": ("policies/replicas", "controllers/overview/replicas", "cli/cluster/queueing/replicas"),
    "rightsizing": ("policies/rightsizing", "cli/rightsize", "controllers/rightsizing"),
    "runtime": ("models/runtime", "serving/runtime", "features/run_rows"),
    "serving": ("serving", "agents/logtail", "dashboard/data"),
    "sizing": ("models/sizing", "policies/sizing", "serving/sizing", "core/workload", "cluster/workloads"),
    "staging": ("controllers/staging", "controllers/overview"),
    "training": ("training",),
    "why": ("controllers/overview", "policies/diagnosis", "core/scheduling/diagnosis"),
}
"""Where the codes of an area come from. Some files give codes of two areas: services also fail as any endpoint does."""

COMPUTED = {
    # As the executor gave it, before it was killed.
    ("agents/node_executor/journal.py", "code"): {"NODE_PLAN_APPLIED"},
    ("controllers/overview/history.py", "f'EVICTED_{after.phase.upper()}'"): {
        f"EVICTED_{phase.upper()}" for phase in Phase
    },
    ("controllers/overview/findings/holds.py", "f'PREEMPTION_{decision.upper()}'[:40]"): {
        f"PREEMPTION_{verdict.upper()}" for verdict in (*PreemptionAction, LAPSED, "advice")
    },
    ("core/scheduling/classify.py", "f'CLASS_{rule.code}'"): {f"CLASS_{code}" for code in RULE_CODES},
    ("policies/admission/queue.py", "source.name"): {source.name for source in Source},
    ("policies/placement/choose.py", "code.name"): {refusal.name for refusal in Refusal if refusal is not Refusal.NONE},
    ("training/demand/gate.py", "f'WORSE_{c.metric.upper()}'"): {
        f"WORSE_{metric.upper()}" for metric in (ACCURACY, LENDING, SAFETY)
    },
}
"""What these expressions, which are not followed, can be."""

ENTRIES = [(code, meaning) for code, meanings in reason_codes().items() for meaning in meanings]


@pytest.fixture(scope="module")
def raised() -> RaisedCodes:
    return RaisedCodes(ROOT, sorted(path.parent.name for path in ROOT.glob("*/__init__.py")))


@pytest.fixture(scope="module")
def by_path(raised: RaisedCodes) -> dict[str, set[str]]:
    result = {path: set(codes) for path, codes in raised.by_path.items()}
    for (path, _), codes in COMPUTED.items():
        result.setdefault(path, set()).update(codes)
    result["core/scheduling/diagnosis.py"] = set(Binding)
    return result


def gives(area: str, path: str) -> bool:
    return any(path.startswith((f"{prefix}/", f"{prefix}.py")) for prefix in AREAS[area])


def test_every_code_that_can_be_given_has_an_entry_in_its_area(by_path: dict[str, set[str]]) -> None:
    assert sum(map(len, by_path.values())) > 300
    absent = [
        f"{path}: {code}"
        for path, codes in by_path.items()
        for code in sorted(codes)
        if not any(gives(meaning.area, path) for meaning in reason_codes().get(code, ()))
    ]
    assert not absent, "explain them in core/reason_codes"


@pytest.mark.parametrize(("code", "meaning"), ENTRIES, ids=[f"{each.area}-{code}" for code, each in ENTRIES])
def test_every_entry_is_of_a_code_that_its_area_gives(
    by_path: dict[str, set[str]], code: str, meaning: Meaning
) -> None:
    assert any(code in codes for path, codes in by_path.items() if gives(meaning.area, path)), "nothing gives it"


def test_what_is_not_followed_is_listed(raised: RaisedCodes) -> None:
    assert raised.open == set(COMPUTED)


def test_areas_are_those_of_the_catalogue() -> None:
    assert set(AREAS) == set(areas())
    assert all(areas().values())


@pytest.mark.parametrize(("code", "meaning"), ENTRIES, ids=[f"{each.area}-{code}" for code, each in ENTRIES])
def test_meanings_are_sentences(code: str, meaning: Meaning) -> None:
    assert code == code.upper()
    for text in (meaning.means, *filter(None, (meaning.do,))):
        assert text[0].isupper() or text[0] == "`"
        assert text.endswith(".")
        assert text == " ".join(text.split())
        assert text.count("`") % 2 == 0


def test_a_code_has_a_page_that_does_not_change() -> None:
    assert page_of("NO_MODEL") == "reasons.html#no_model"


_SOURCE = """
from kopt.core.reason import Reason
from kopt.other import IMPORTED

TABLE = {"a": "IN_A_TABLE"}

def plain(flag, item, other):
    Reason("PLAIN", "text")
    Reason(code="KEYWORD", message="text")
    Reason("YES" if flag else "NO", "text")
    Reason(IMPORTED, "text")
    Reason(TABLE[item], "text")
    Reason(TABLE.get(item), "text")
    Reason(other.code, "text")
    Reason(item["code"], "text")
    code, text = ("FIRST", "text") if flag else ("SECOND", "text")
    Reason(code, text)
    for holds, each, text in ((flag, "OF_A_LOOP", "text"),):
        Reason(each, text)
    for each, text in doubts(item):
        Reason(each, text)
    Reason(result(flag), "text")
    Reason(item.name, "text")

def doubts(item):
    yield "YIELDED", "text"

def result(flag):
    return "RETURNED"

def refuse(code, text):
    return refused(text, code)

def refused(text, code):
    return Reason(code, text)

class Failure(Exception):
    def __init__(self, code, text):
        self.reason = Reason(code, text)

class Notes:
    def doubt(self, code):
        Reason(code, "text")

def callers(notes):
    refuse("PASSED_ON", "text")
    raise Failure("RAISED", "text")
    notes.doubt("OF_A_METHOD")
"""


def test_codes_are_followed_through_the_source(tmp_path: Path) -> None:
    package = tmp_path / "core"
    package.mkdir()
    (package / "reason.py").write_text("class Reason: ...\n", encoding="utf-8")
    (package / "plain.py").write_text(_SOURCE, encoding="utf-8")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "__init__.py").write_text('IMPORTED = "OF_ANOTHER_FILE"\n', encoding="utf-8")
    raised = RaisedCodes(tmp_path, ["core", "other"])
    assert raised.open == {("core/plain.py", "item.name")}
    assert raised.by_path["core/plain.py"] == {
        "PLAIN",
        "KEYWORD",
        "YES",
        "NO",
        "OF_ANOTHER_FILE",
        "IN_A_TABLE",
        "FIRST",
        "SECOND",
        "OF_A_LOOP",
        "YIELDED",
        "RETURNED",
        "PASSED_ON",
        "RAISED",
        "OF_A_METHOD",
    }
