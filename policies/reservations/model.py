"""The snapshot that a plan is made from: one pool of GPUs, at one time. GPUs are milli-GPU, times Unix seconds."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Claim:
    """One occurrence of a reservation that has not ended. ``owner``: the queue whose jobs it is for."""

    name: str
    owner: str
    gpus: int
    start_s: float
    until_s: float
    lead_s: float

    def __post_init__(self) -> None:
        if self.gpus <= 0 or not self.start_s < self.until_s or not self.lead_s >= 0:
            raise ValueError(f"{self.name}: {self.gpus} milli-GPU from {self.start_s:g} until {self.until_s:g}")


@dataclass(frozen=True)
class Running:
    """A job with GPUs. ``remaining_s``: it ends within this time with the probability that is asked for; None where
    nothing is known. ``is_killable``: it can be stopped within a lead without losing work that is not saved."""

    name: str
    owner: str
    gpus: int
    started_s: float
    remaining_s: float | None = None
    is_killable: bool = False


@dataclass(frozen=True)
class Pending:
    """A job that could start. ``run_s`` as ``Running.remaining_s``. ``is_killable``: it answers requests to save.

    ``preempts``: its queueing system may stop others for it. ``is_blocked``: it is kept from starting now.
    """

    name: str
    owner: str
    gpus: int
    run_s: float | None = None
    is_killable: bool = False
    preempts: bool = False
    is_blocked: bool = False


@dataclass(frozen=True)
class PoolSnapshot:
    """``gpus`` of the nodes that can be used, ``free`` what no job has (what terminates has its GPUs still);
    ``pending`` in the order in which they would start. Raises ValueError for two jobs or claims of one name."""

    now_s: float
    gpus: int
    free: int
    claims: tuple[Claim, ...] = ()
    running: tuple[Running, ...] = ()
    pending: tuple[Pending, ...] = ()

    def __post_init__(self) -> None:
        for what in (self.claims, self.running, self.pending):
            if len({item.name for item in what}) < len(what):
                raise ValueError("two jobs or claims have one name")
