"""Whatever people do to pools, queues and jobs, and wherever the controller dies: no more is lent than there is, each
job is stopped and let go in turns, and in the end everybody has what is theirs."""

from example_budget import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from kopt.cluster.client.resources import KUEUE_CLUSTER_QUEUES, KUEUE_WORKLOADS, LENDING_POOLS

from .in_memory import World

FLAVORS, OWN = ("a100", "h100"), {"a100": 2, "h100": 0}
Step = tuple[str, int]
steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["needs", "needs", "needs", "dies", "submit"]), st.integers(0, 8)),
        st.tuples(
            st.sampled_from(
                [
                    "cohort",
                    "mode",
                    "delete",
                    "flavour",
                    "other",
                    "quota",
                    "resume",
                    "stop",
                    "again",
                    "refuse",
                    "clock",
                    "gone",
                ]
            ),
            st.integers(0, 5),
        ),
    ),
    min_size=1,
    max_size=14,
)


class People:
    """Do one thing after the other; ``own`` is what each flavour owns by their word."""

    def __init__(self) -> None:
        self.world = World()
        self.world.queue(quotas={name: str(own) for name, own in OWN.items()})
        self.own = dict(OWN)
        self.jobs = 0
        self.world.demand = {"serving/chat": 4.0, "serving/other": 4.0}
        self.lend("chat", "h100")
        for gpus in (1, 2, 3):
            self.submit(gpus)

    def lend(self, name: str, flavor: str, mode: str = "enforce") -> None:
        self.world.pool(name, borrowers=[{"system": "Kueue", "queue": "lent", "flavor": flavor}], mode=mode)

    def submit(self, gpus: int) -> None:
        self.jobs += 1
        self.world.submit(f"job-{self.jobs}", max(1, gpus))

    def do(self, what: str, number: int) -> None:
        world, name = self.world, f"job-{number + 1}"
        queue = world.get(KUEUE_CLUSTER_QUEUES, "lent")
        known = (KUEUE_WORKLOADS.path(), "team", name) in world.objects
        if what == "needs":
            world.demand["serving/chat" if number % 2 else "serving/other"] = float(number)
        elif what == "dies":
            world.dies_after = number
        elif what == "submit":
            self.submit(number % 4)
        elif what == "cohort":
            queue["spec"]["cohort"] = "all" if number % 2 else ""
            world.put(KUEUE_CLUSTER_QUEUES, queue)
        elif what == "mode":
            self.lend("chat", "h100", ("enforce", "observe", "annotate")[number % 3])
        elif what == "flavour":
            self.lend("chat", FLAVORS[number % 2])
        elif what == "other":
            self.lend("other", FLAVORS[number % 2])
        elif what == "delete":
            world.objects.pop((LENDING_POOLS.path(), "", ("chat", "other")[number % 2]), None)
        elif what == "quota":
            resource = queue["spec"]["resourceGroups"][0]["flavors"][number % 2]["resources"][0]
            # Another number than any that we write.
            resource["nominalQuota"] = str(20 * (1 + number))
            self.own[FLAVORS[number % 2]] = 20 * (1 + number)
            world.put(KUEUE_CLUSTER_QUEUES, queue)
        elif what == "refuse":
            world.refuses = {name} if number % 2 else set()
        elif what == "clock":
            world.now_s += 3600.0 * (number - 2)
        elif known and what == "gone":
            world.end(name)
        elif known and what in ("resume", "stop"):
            one = world.get(KUEUE_WORKLOADS, name, "team")
            one["spec"]["active"] = what == "resume"
            world.put(KUEUE_WORKLOADS, one)
        elif known:
            gpus = world.gpus(world.get(KUEUE_WORKLOADS, name, "team"))
            world.end(name)
            world.submit(name, gpus)


@settings(max_examples=examples(50), deadline=None)
@given(steps)
def test_everybody_has_what_is_theirs_in_the_end(done: list[Step]) -> None:
    people = People()
    world = people.world
    stopped: set[str] = set()
    for what, number in done:
        exists = (KUEUE_WORKLOADS.path(), "team", f"job-{number + 1}") in world.objects
        if what == "stop" and exists and f"job-{number + 1}" not in world.held():
            stopped.add(f"job-{number + 1}")
        if what in ("resume", "again", "gone"):
            stopped.discard(f"job-{number + 1}")
        people.do(what, number)
        world.life(steps=2)
        world.kueue()
        world.now_s += 60.0
        world.notes()
    world.refuses = set()
    for flavor in FLAVORS:
        assert world.quota(flavor=flavor) <= people.own[flavor] + 8, "never more is lent than a pool has"
    for name in ("chat", "other"):
        world.objects.pop((LENDING_POOLS.path(), "", name), None)
    world.lives(3)
    assert {name: world.quota(flavor=name) for name in FLAVORS} == people.own
    assert world.held() == set()
    for (path, _, name), one in world.objects.items():
        if path == KUEUE_WORKLOADS.path():
            assert (one["spec"].get("active") is not False) == (name not in stopped), name
