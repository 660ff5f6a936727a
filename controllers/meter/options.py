"""The options of ``kopt controller meter``."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from kopt.cluster.runtime.options import ControllerOptions, Flag, Kind, PrometheusAuthority, PrometheusToken, refuse
from kopt.core.cost.metering import Rule
from kopt.core.decision import Mode

if TYPE_CHECKING:
    from kopt.controllers.meter.main import ProcessSettings
    from kopt.core.cost.prices import PriceBook

LABELS = "kaiwo.ai/team,team,project,cost-center"


@dataclass(frozen=True, kw_only=True)
class Options(ControllerOptions):
    """Record which pod holds which part of which GPU from when until when, for `kopt cost`, and keep KaiwoBudgets.

    Intervals are in the database that KOPT_DATABASE_URL names (PostgreSQL), else in cost.db below KOPT_STATE_DIR or
    KOPT_HOME. What no pod is charged for is unallocated, stranded by fragmentation, reserved by a taint, on a node that
    is unavailable, or unobserved because no meter ran: at any time all of it sums to the GPUs of each node, which is
    checked each hour against what was recorded of nodes. With enforce, a KaiwoBudget that is spent and says Hold stops
    its LocalQueues until its next window; what runs goes on. `kopt off` opens them.

    With --prometheus it also stores each hour how busy the GPUs of each pool were, for 400 days, as `kopt utilisation
    record` does; `kopt utilisation show` and the page Efficiency show it.

    Examples:

        kopt controller meter --kubeconfig admin.conf

        kopt controller meter --mode enforce --prices prices.toml
    """

    mode: Annotated[Mode, Flag("enforce lets budgets stop queues; else they are reported.")] = Mode.OBSERVE
    rule: Annotated[Rule, Flag("Which share of a GPU is charged: the larger one, memory's or compute's.")] = Rule.MAX
    prices: Annotated[
        Path | None,
        Flag("A price book, whose entries go before the shipped ones; for budgets in money.", metavar="FILE"),
    ] = None
    labels: Annotated[
        str, Flag("Labels of pods, else of their namespaces, that are recorded; separated by commas.")
    ] = LABELS
    keep_s: Annotated[float, Flag("How long intervals are kept.", name="keep", kind=Kind.SPAN)] = 400 * 86400.0
    reconcile_s: Annotated[
        float, Flag("How often what was recorded is reconciled.", name="reconcile", kind=Kind.SPAN)
    ] = 3600.0

    prometheus: Annotated[
        str, Flag("Where the rules of `kopt alerts rules` are evaluated; empty: how busy GPUs were is not stored.")
    ] = ""
    token_file: PrometheusToken = None
    certificate_authority: PrometheusAuthority = None

    def settings(self) -> "ProcessSettings":
        from kopt.controllers.meter.main import ProcessSettings
        from kopt.controllers.meter.reconciler import MeterSettings
        from kopt.core.settings import SettingsError
        from kopt.serving.base.database.opening import location
        from kopt.serving.base.environment import load_settings

        try:
            settings = load_settings()
        except SettingsError as error:
            refuse(str(error), "--prices")
        keys = tuple(key.strip() for key in self.labels.split(",") if key.strip())
        meter = MeterSettings(self.rule, keys, self.keep_s, self.reconcile_s)
        return ProcessSettings(
            where=location(settings, "cost"),
            busy=location(settings, "busy"),
            book=self._book(),
            meter=meter,
            mode=self.mode,
            prometheus=self.prometheus,
            token_file=self.token_file,
            certificate_authority=self.certificate_authority,
            **self.replica,
        )

    def _book(self) -> "PriceBook":
        from kopt.core.cost.prices import PriceError, price_book, shipped_prices

        if self.prices is None:
            return shipped_prices()
        try:
            return shipped_prices().with_own(price_book(self.prices.read_text(encoding="utf-8")))
        except (OSError, UnicodeDecodeError, PriceError) as error:
            refuse(f"the price book cannot be used: {error}", "--prices")
