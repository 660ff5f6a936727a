"""The kubelet's PodResources API on its Unix socket."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kopt.core.hardware.node_allocation import DeviceAllocation
from kopt.formats.pod_resources import (
    ALLOCATABLE_METHOD,
    LIST_METHOD,
    PodResourcesError,
    allocatable_of,
    allocations_of,
)

if TYPE_CHECKING:
    import grpc

_LIMIT_S = 5.0
_LONGEST_BYTES = 16 << 20
"""What the kubelet itself allows (``pkg/kubelet/apis/podresources/constants.go``)."""


class KubeletError(Exception):
    """The kubelet has not said what its pods have."""


class PodResources:
    """Asks over one channel, which connects again by itself."""

    def __init__(self, channel: "grpc.aio.Channel") -> None:
        self._list = channel.unary_unary(LIST_METHOD)
        self._allocatable = channel.unary_unary(ALLOCATABLE_METHOD)

    async def allocations(self) -> tuple[DeviceAllocation, ...]:
        """What running pods have been given. Raises KubeletError."""
        with _as_kubelet_errors():
            return allocations_of(await self._list(b"", timeout=_LIMIT_S))

    async def allocatable(self) -> dict[str, tuple[str, ...]]:
        """Devices by resource that device plugins offer. Raises KubeletError."""
        with _as_kubelet_errors():
            return allocatable_of(await self._allocatable(b"", timeout=_LIMIT_S))


@contextmanager
def _as_kubelet_errors() -> Iterator[None]:
    import grpc

    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise KubeletError(f"{error.code().name}: {error.details()}") from error
    except PodResourcesError as error:
        raise KubeletError(str(error)) from error


@asynccontextmanager
async def pod_resources(socket: Path) -> AsyncIterator[PodResources]:
    """Over the socket, which need not be there yet. Raises KubeletError without grpcio."""
    try:
        from grpc import aio
    except ImportError as error:
        raise KubeletError("grpcio is not installed: pip install 'kaiwo-optimizer[agents]'") from error
    options = [
        ("grpc.max_receive_message_length", _LONGEST_BYTES),
        ("grpc.enable_http_proxy", 0),
        ("grpc.max_reconnect_backoff_ms", 5_000),
        # The default is the path, escaped, which Go's HTTP/2 refuses.
        ("grpc.default_authority", "localhost"),
    ]
    async with aio.insecure_channel(f"unix:{socket.absolute()}", options) as channel:
        yield PodResources(channel)
