"""What evidence weighs, and the verdicts that follow: properties for any evidence, and the figures of the table."""

from hypothesis import given
from hypothesis import strategies as st

from kopt.core.hardware.health import Evidence, EvidenceClass, Grade, code_of, health_codes
from kopt.policies.health import add, evaluate, explain, load_of, pruned, repaired

APPLICATION = sorted(name for name, code in health_codes().items() if code.of is EvidenceClass.APPLICATION)
STICKY = sorted(name for name, code in health_codes().items() if code.sticky)
ANY = st.builds(
    Evidence,
    st.sampled_from(sorted(health_codes())),
    st.sampled_from(["", "0", "1", "7"]),
    st.sampled_from([0.0, 1.0, 2.0, 30.0]),
    st.floats(0, 1e6),
)


def of(code: str, *times_s: float, gpu: str = "3") -> list[Evidence]:
    return [Evidence(code, gpu, 1.0, at_s) for at_s in times_s]


@given(
    st.lists(st.tuples(st.sampled_from([*APPLICATION, "XID_999"]), st.floats(0, 1e6), st.floats(1, 1e4)), max_size=60)
)
def test_faults_of_applications_never_count(shown: list[tuple[str, float, float]]) -> None:
    entries = add({}, [Evidence(code, "0", amount, at_s) for code, at_s, amount in shown])
    health = evaluate(entries, {}, 1e6)
    assert (health.grade, health.score) == (Grade.HEALTHY, 1.0)
    assert explain(entries, 1e6) == ""


def test_the_codes_of_nvidias_device_plugin_are_applications_faults() -> None:
    assert all(code_of(f"XID_{xid}").of is EvidenceClass.APPLICATION for xid in (13, 31, 43, 45, 68, 109))
    assert all(code_of(name).weight >= 1 for name in STICKY)
    assert "XID_79" in STICKY


@given(st.lists(ANY, max_size=40), st.floats(0, 1e6))
def test_without_further_evidence_no_load_grows(shown: list[Evidence], later_s: float) -> None:
    entries = add({}, sorted(shown, key=lambda item: item.at_s))
    now = evaluate(entries, {}, 1e6)
    later = evaluate(entries, now.gpus, 1e6 + later_s)
    assert later.grade <= now.grade
    assert all(later.loads.get(gpu, 0.0) <= load + 1e-9 for gpu, load in now.loads.items())
    assert 0 <= now.score <= 1


@given(st.lists(ANY, max_size=30), st.integers(0, 30))
def test_evidence_taken_in_two_parts_weighs_the_same(shown: list[Evidence], cut: int) -> None:
    shown = sorted(shown, key=lambda item: item.at_s)
    whole, parts = add({}, shown), add(add({}, shown[:cut]), shown[cut:])
    assert whole == parts


@given(st.lists(ANY, max_size=40))
def test_after_a_repair_nothing_condemns_but_what_comes_after(shown: list[Evidence]) -> None:
    entries = repaired(add({}, sorted(shown, key=lambda item: item.at_s)), 1e6)
    assert not any(entry.lasts for entry in entries.values())
    assert all(load_of(entry, 1e6) <= 0.25 for entry in entries.values())
    one = {key: entry for key, entry in entries.items() if key[1] == "0" and key[0] in STICKY[:1]}
    assert evaluate(one, {"0": Grade.CONDEMNED}, 1e6).grade < Grade.CONDEMNED


@given(st.sampled_from(STICKY), st.floats(0, 1e8))
def test_no_time_heals_a_sticky_code(code: str, later_s: float) -> None:
    entries = pruned(add({}, of(code, 10.0)), 10.0 + later_s)
    assert evaluate(entries, {}, 10.0 + later_s).grade is Grade.CONDEMNED


def test_a_verdict_does_not_swing_on_one_load() -> None:
    entries = add({}, of("XID_48", 0.0, 0.0))
    first = evaluate(entries, {}, 0.0)
    assert first.grade is Grade.CONDEMNED
    day_s = 86400.0
    # 1.2 halves in a day: 0.6 is above what ends it, though below what begins it.
    assert evaluate(entries, first.gpus, day_s).grade is Grade.CONDEMNED
    assert evaluate(entries, {}, day_s).grade is Grade.SUSPECT
    assert evaluate(entries, first.gpus, 2 * day_s).grade is Grade.HEALTHY


def test_short_heat_is_no_fault_and_lasting_heat_is() -> None:
    heat = [Evidence("THERMAL_THROTTLE", "2", 15.0, 15.0 * n) for n in range(40)]
    assert evaluate(add({}, heat[:12]), {}, 180.0).grade is Grade.HEALTHY
    assert evaluate(add({}, heat), {}, 600.0).grade is Grade.CONDEMNED


def test_a_state_weighs_while_it_lasts_and_is_counted_once() -> None:
    lasting = add({}, of("LINK_DEGRADED", 0.0, 60.0, 120.0))
    (entry,) = lasting.values()
    assert (entry.count, load_of(entry, 1e6)) == (1.0, 0.6)
    over = add(lasting, [Evidence("LINK_DEGRADED", "3", 0.0, 1000.0)])
    assert load_of(next(iter(over.values())), 4600.0) == 0.3


def test_every_node_explains_its_score() -> None:
    entries = add({}, [*of("XID_79", 5.0), *of("XID_43", 6.0), *of("XID_63", 7.0, 8.0, gpu="1")])
    assert explain(entries, 8.0) == (
        "GPU 3: XID 79, the GPU has fallen off the bus; GPU 1: XID 63, a memory row was remapped (2 times)"
    )
