"""The options of a controller's command: a dataclass in ``controllers/NAME/options.py``, one field per option.

@dataclass(frozen=True, kw_only=True)
class Options(ControllerOptions):
    '''What the controller does, in one line.

    Examples:

        kopt controller NAME --kubeconfig admin.conf
    '''

    pause_s: Annotated[float, Flag("Wait before a retry.", name="pause", kind=SPAN)] = 60.0

    def settings(self) -> ProcessSettings: ...

The docstring is the help. The command line reads texts as ``kind`` says, so that fields have values and not texts.
Nothing heavy is imported here: every ``kopt`` reads the options of all controllers.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

from kopt.core import decision

if TYPE_CHECKING:
    from kopt.cluster.runtime.manager import ReplicaSettings


class Kind(StrEnum):
    """How the text of an option is read; empty: as the type of its field says."""

    PLAIN = ""
    SPAN = "SPAN"
    """Seconds, written like 30d, 12h, 90m or 300s; a field that may be None takes an empty text."""
    SIZE = "SIZE"
    """Bytes, written like 500MiB or 2TiB; a field that may be None takes an empty text."""


@dataclass(frozen=True)
class Flag:
    """A field on the command line. ``name`` is the option without dashes where it is not the field's name."""

    help: str
    name: str = ""
    kind: Kind = Kind.PLAIN
    metavar: str = ""
    environment: str = ""
    minimum: int | None = None
    is_switch: bool = False
    """A truth value that is off unless it is given: there is no ``--no-NAME``."""


class OptionError(ValueError):
    """Options that contradict each other or cannot be used; ``option`` is the one to change."""

    def __init__(self, message: str, option: str) -> None:
        super().__init__(message)
        self.option = option


PrometheusToken = Annotated[
    Path | None, Flag("File with a bearer token for Prometheus; read again for each query.", metavar="FILE")
]
PrometheusAuthority = Annotated[
    Path | None, Flag("CA of Prometheus' certificate; else those of the system.", metavar="FILE")
]
WorkloadMode = Annotated[
    str,
    Flag(
        "Whether kaiwo.ai/mode of a workload may ask for less than its namespace or the policy: Any, NotLower; empty: "
        "only where these do not say enforce."
    ),
]


@dataclass(frozen=True, kw_only=True)
class ServerOptions(ABC):
    """What every command takes, also where no replica leads; the default of ``port`` is in the list of controllers."""

    kubeconfig: Annotated[
        Path | None, Flag("The cluster; else KUBECONFIG, the pod's account, ~/.kube.", metavar="FILE")
    ] = None
    host: Annotated[str, Flag("Interface to listen on.")] = "127.0.0.1"
    port: Annotated[int, Flag("Port of probes and metrics; 0 takes a free one.")] = 0

    @abstractmethod
    def settings(self) -> Any:
        """What the controller's ``serve`` takes. Raises OptionError."""


@dataclass(frozen=True, kw_only=True)
class ControllerOptions(ServerOptions):
    """What the commands take of which one replica leads."""

    namespace: Annotated[str, Flag("Namespace of the Lease.", environment="POD_NAMESPACE")] = "kopt-system"
    identity: Annotated[str, Flag("This replica's name in the Lease.", environment="POD_NAME")] = ""

    @abstractmethod
    def settings(self) -> "ReplicaSettings": ...

    @property
    def replica(self) -> dict[str, Any]:
        """The fields of ``ReplicaSettings`` that all controllers fill alike."""
        result: dict[str, Any] = {
            "kubeconfig": self.kubeconfig,
            "host": self.host,
            "port": self.port,
            "namespace": self.namespace,
        }
        return result | ({"identity": self.identity} if self.identity else {})


def may_lower(workload_mode: str) -> bool | None:
    """As settings take it. Raises OptionError."""
    try:
        return decision.may_lower(workload_mode)
    except ValueError as error:
        refuse(str(error), "--workload-mode")


def refuse(message: str, option: str) -> NoReturn:
    """Raises OptionError."""
    raise OptionError(message, option)
