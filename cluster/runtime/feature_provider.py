"""The switches for programs of others, as a provider of OpenFeature (https://openfeature.dev).

    from openfeature import api
    from openfeature.evaluation_context import EvaluationContext

    with provider() as switches:
        api.set_provider(switches)
        acts = api.get_client().get_boolean_value("placement", False, EvaluationContext("jobs/research/train-7b"))

Needs the extra ``openfeature``; no component of ours does. A thin adapter: ``core.switches`` says who is included.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from openfeature.evaluation_context import EvaluationContext
from openfeature.exception import (
    FlagNotFoundError,
    InvalidContextError,
    ProviderNotReadyError,
    TargetingKeyMissingError,
    TypeMismatchError,
)
from openfeature.flag_evaluation import FlagResolutionDetails, Reason
from openfeature.provider import AbstractProvider, Metadata

from kopt.cluster.client.api import connect
from kopt.cluster.runtime.informer import wait_synced
from kopt.cluster.runtime.switches import LiveSwitches
from kopt.core.switches import BY_NAME, OFF, ON, Owner, Switches

_FIRST_S = 10.0


class SwitchProvider(AbstractProvider):
    """Flags are features. A boolean flag says whether the feature acts on what the targeting key names,
    ``PLURAL/NAMESPACE/NAME`` of the owner (``jobs/research/train-7b``); an integer flag is the percentage.

    ``read`` returns the switches of now, None before they have been read: then every flag is an error, and the caller's
    default counts. Give False as default: what is not known should not act.
    """

    def __init__(self, read: Callable[[], Switches | None]) -> None:
        super().__init__()
        self._read = read

    def get_metadata(self) -> Metadata:
        return Metadata("kaiwo-optimizer")

    def resolve_boolean_details(
        self, flag_key: str, default_value: bool, evaluation_context: EvaluationContext | None = None
    ) -> FlagResolutionDetails[bool]:
        percent, metadata = self._percent(flag_key)
        if percent in (OFF, ON):
            reason = Reason.DISABLED if percent == OFF else Reason.STATIC
            return FlagResolutionDetails(percent == ON, reason=reason, flag_metadata=metadata)
        included = self._switches().includes(flag_key, _owner(evaluation_context))
        return FlagResolutionDetails(included, reason=Reason.SPLIT, flag_metadata=metadata)

    def resolve_integer_details(
        self, flag_key: str, default_value: int, evaluation_context: EvaluationContext | None = None
    ) -> FlagResolutionDetails[int]:
        percent, metadata = self._percent(flag_key)
        return FlagResolutionDetails(percent, reason=Reason.STATIC, flag_metadata=metadata)

    def resolve_string_details(
        self, flag_key: str, default_value: str, evaluation_context: EvaluationContext | None = None
    ) -> FlagResolutionDetails[str]:
        raise _mismatch(flag_key)

    def resolve_float_details(
        self, flag_key: str, default_value: float, evaluation_context: EvaluationContext | None = None
    ) -> FlagResolutionDetails[float]:
        raise _mismatch(flag_key)

    def resolve_object_details(
        self,
        flag_key: str,
        default_value: Sequence[Any] | Mapping[str, Any],
        evaluation_context: EvaluationContext | None = None,
    ) -> FlagResolutionDetails[Sequence[Any] | Mapping[str, Any]]:
        raise _mismatch(flag_key)

    def _switches(self) -> Switches:
        switches = self._read()
        if switches is None:
            raise ProviderNotReadyError("the FeatureRollout has not been read yet")
        return switches

    def _percent(self, flag_key: str) -> tuple[int, Mapping[str, bool | int | float | str]]:
        if flag_key not in BY_NAME:
            raise FlagNotFoundError(f"there is no feature {flag_key!r}; there are {', '.join(BY_NAME)}")
        switches = self._switches()
        setting = switches.settings.get(flag_key)
        by = {} if setting is None else {"by": setting.by, "reason": setting.reason, "alarm": setting.alarm}
        return switches.percent(flag_key), {"percent": switches.percent(flag_key), **by}


@contextlib.contextmanager
def provider(kubeconfig: Path | None = None) -> Iterator[SwitchProvider]:
    """A provider that follows the cluster in a thread of its own until the block ends.

    Raises NoCluster where none is configured, Unreachable where the switches cannot be read within ten seconds.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="kopt-switches", daemon=True)
    thread.start()
    stack = contextlib.AsyncExitStack()
    try:
        switches = asyncio.run_coroutine_threadsafe(_follow(stack, kubeconfig), loop).result()
        yield SwitchProvider(lambda: switches.now)
    finally:
        asyncio.run_coroutine_threadsafe(stack.aclose(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _follow(stack: contextlib.AsyncExitStack, kubeconfig: Path | None) -> LiveSwitches:
    switches = LiveSwitches(await stack.enter_async_context(connect(kubeconfig)))
    task = asyncio.create_task(switches.informer.run())

    async def end() -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    stack.push_async_callback(end)
    await wait_synced([switches.informer], _FIRST_S)
    return switches


def _owner(context: EvaluationContext | None) -> Owner:
    key = context.targeting_key if context is not None else None
    if not key:
        raise TargetingKeyMissingError("name the owner as PLURAL/NAMESPACE/NAME, such as jobs/research/train-7b")
    plural, _, rest = key.partition("/")
    namespace, slash, name = rest.partition("/")
    if not (plural and slash and name):
        raise InvalidContextError(f"{key!r} is no owner; write PLURAL/NAMESPACE/NAME, such as jobs/research/train-7b")
    return Owner.of(plural, namespace, name)


def _mismatch(flag_key: str) -> TypeMismatchError:
    return TypeMismatchError(f"{flag_key}: features are boolean, or integer for their percentage")
