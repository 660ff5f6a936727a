"""The options of ``kopt controller partitions``."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from kopt.cluster.runtime.options import (
    ControllerOptions,
    Flag,
    Kind,
    PrometheusAuthority,
    PrometheusToken,
    refuse,
)
from kopt.core.decision import Mode

if TYPE_CHECKING:
    from kopt.controllers.partitions.main import ProcessSettings

DEFAULT_CONFIGURATIONS = "gpu-operator/default-mig-parted-config"
DEFAULT_PROFILES = "kube-amd-gpu/default-dcm-config"
DEFAULT_SHARING = "gpu-operator/device-plugin-config"


@dataclass(frozen=True, kw_only=True)
class Options(ControllerOptions):
    """Cut GPUs into MIG instances, and divide AMD's into partitions, as MIGStrategies and what waits need them.

    Pods that wait for nvidia.com/mig-*, for amd.com/cpx_nps4 and the like, and claims for instances are counted, and an
    integer programme selects which idle nodes get which configuration of NVIDIA's mig-manager or profile of AMD's
    device config manager; the status of each MIGStrategy says what, and what is left undone. With enforce the node is
    cordoned, its label is written once nothing runs on it, and it takes pods again when it has the instances. A mode
    of AMD's that is new to its kind of nodes is tried on one of them; a node that does not come out as planned is made
    as before. Nodes whose driver cuts on demand are left to it. What runs is touched only with --drain, on nodes with
    AMD's GPUs, where what waits is worth more than what is lost. `kopt off` gives labels of mig-manager back.

    With --share it also watches nodes whose device plugin shares GPUs by MPS or time-slicing. Where Prometheus shows
    that pods disturb each other, or MPS has lost its daemon, the next of the plugin's own configurations is proposed as
    an event (SharingProposed): MPS for fewer clients, time-slicing, a GPU for each; and back after a calm. With enforce
    one node at a time gets its label, once nothing runs on it or, with --share-drain, once its pods have been evicted.

    Examples:

        kopt controller partitions --kubeconfig admin.conf --mode enforce

        kopt controller partitions --share --prometheus http://127.0.0.1:9090
    """

    mode: Annotated[Mode, Flag("enforce cuts nodes; else the plan is shown.")] = Mode.OBSERVE
    configurations: Annotated[str, Flag("ConfigMap of mig-manager's configurations.", metavar="NAMESPACE/NAME")] = (
        DEFAULT_CONFIGURATIONS
    )
    profiles: Annotated[str, Flag("ConfigMap of AMD's device config manager.", metavar="NAMESPACE/NAME")] = (
        DEFAULT_PROFILES
    )
    at_once: Annotated[int, Flag("Nodes that are being cut at a time.", name="at-once", minimum=1)] = 4
    settle_s: Annotated[
        float, Flag("Wait after the cordon, for pods that were scheduled before.", name="settle", kind=Kind.SPAN)
    ] = 3.0
    cut_s: Annotated[float, Flag("After so long cutting has failed.", name="cut-within", kind=Kind.SPAN)] = 900.0

    drains: Annotated[bool, Flag("Empty nodes with AMD's GPUs where that is worth it.", name="drain")] = False
    drain_ratio: Annotated[
        float, Flag("What draining wins has to be so many times what it costs.", name="drain-ratio", minimum=1)
    ] = 2.0
    verify_s: Annotated[
        float,
        Flag("After so long the device plugin has to offer what was wanted.", name="verify-within", kind=Kind.SPAN),
    ] = 300.0

    share: Annotated[bool, Flag("Watch how device plugins share GPUs, as well.", is_switch=True)] = False
    share_drain: Annotated[
        bool, Flag("Empty nodes that are to be shared in another way.", name="share-drain", is_switch=True)
    ] = False
    share_configurations: Annotated[
        str,
        Flag("ConfigMap of the device plugin's configurations.", name="share-configurations", metavar="NAMESPACE/NAME"),
    ] = DEFAULT_SHARING
    share_slowdown: Annotated[
        str,
        Flag(
            "Latency or step time over what it should be, by namespace and pod; above 1 is contended.",
            name="share-slowdown",
            metavar="PROMQL",
        ),
    ] = ""
    prometheus: Annotated[
        str, Flag("The Prometheus that scrapes GPU exporters; without it only lost daemons of MPS are seen.")
    ] = ""
    token_file: PrometheusToken = None
    certificate_authority: PrometheusAuthority = None

    def settings(self) -> "ProcessSettings":
        from kopt.controllers.partitions.amd_pools import AmdSettings
        from kopt.controllers.partitions.dcm import DeviceConfigManager
        from kopt.controllers.partitions.executors import MigManager
        from kopt.controllers.partitions.main import ProcessSettings
        from kopt.controllers.partitions.pools import Managers
        from kopt.controllers.partitions.reconciler import ControllerSettings
        from kopt.controllers.partitions.sharing.reconciler import SharingSettings
        from kopt.controllers.partitions.sharing.steps import StepSettings

        for given, option in (
            (self.share_drain, "--share-drain"),
            (self.share_slowdown, "--share-slowdown"),
            (self.prometheus, "--prometheus"),
        ):
            if given and not self.share:
                refuse("this is for --share, which is not given", option)
        maps = []
        for written, option in (
            (self.configurations, "--configurations"),
            (self.profiles, "--profiles"),
            (self.share_configurations, "--share-configurations"),
        ):
            namespace, slash, name = written.partition("/")
            if not namespace or not slash or not name:
                refuse(f"{written!r} is no NAMESPACE/NAME", option)
            maps.append((namespace, name))
        managers = Managers(
            MigManager(self.settle_s, self.cut_s),
            DeviceConfigManager(self.settle_s, self.cut_s, min(180.0, self.cut_s), self.verify_s),
            AmdSettings(self.drains, least_ratio=self.drain_ratio),
        )
        controller = ControllerSettings(self.mode, self.at_once, managers)
        steps = StepSettings(settle_s=self.settle_s, in_force_s=self.verify_s)
        return ProcessSettings(
            controller=controller,
            configurations=maps[0],
            profiles=maps[1],
            sharing=SharingSettings(self.mode, self.share_drain, steps=steps) if self.share else None,
            sharing_configurations=maps[2],
            slowdown=self.share_slowdown,
            prometheus=self.prometheus,
            token_file=self.token_file,
            certificate_authority=self.certificate_authority,
            **self.replica,
        )
