"""NVIDIA's GPUs through NVML (the package ``nvidia-ml-py``): MIG modes and instances.

Profiles are named as the driver names them, so that a driver's own numbers stay out of plans. Handles are asked for
anew in each call: they do not outlive a change of the MIG mode.
"""

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

from kopt.agents.node_executor.hardware import HardwareError
from kopt.core.gpu import Vendor
from kopt.core.node_plan.state import Compute, MigGpu, MigInstance, NodeState
from kopt.core.node_plan.steps import MigInstanceStep, MigModeStep, Step, Verb


def load_nvml() -> Any:
    """The module, initialised. Raises HardwareError."""
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except ImportError as error:
        raise HardwareError("nvidia-ml-py is not installed") from error
    except nvml.NVMLError as error:
        raise HardwareError(f"NVML does not answer: {error}") from error
    return nvml


class NvmlHardware:
    """``nvml`` is the module ``pynvml``, initialised."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml

    def read(self) -> NodeState:
        with self._refusals("the GPUs cannot be read"):
            handles = [self._nvml.nvmlDeviceGetHandleByIndex(at) for at in range(self._nvml.nvmlDeviceGetCount())]
            return NodeState(Vendor.NVIDIA, tuple(self._gpu(handle) for handle in handles))

    def users(self, step: Step) -> tuple[str, ...]:
        if not isinstance(step, MigModeStep | MigInstanceStep) or step.verb is Verb.MIG_CREATE:
            return ()
        with self._refusals(f"processes on {step.gpu} cannot be read"):
            handle = self._handle(step.gpu)
            only = self._instance_id(handle, step) if isinstance(step, MigInstanceStep) else None
            return tuple(f"process {process.pid}" for process in self._processes(handle, only))

    def apply(self, step: Step) -> None:
        with self._refusals(str(step)):
            if isinstance(step, MigModeStep):
                self._nvml.nvmlDeviceSetMigMode(self._handle(step.gpu), int(step.enabled))
            elif isinstance(step, MigInstanceStep) and step.verb is Verb.MIG_CREATE:
                self._create(self._handle(step.gpu), step)
            elif isinstance(step, MigInstanceStep):
                self._destroy(self._handle(step.gpu), step)
            else:
                raise HardwareError(f"{step}: NVIDIA's GPUs have no such verb")

    def _gpu(self, handle: Any) -> MigGpu:
        nvml = self._nvml
        try:
            enabled, pending = map(bool, nvml.nvmlDeviceGetMigMode(handle))
        except nvml.NVMLError_NotSupported:
            enabled = pending = False
        gpu = MigGpu(_text(nvml.nvmlDeviceGetUUID(handle)), _text(nvml.nvmlDeviceGetName(handle)), enabled, pending)
        if not enabled:
            return gpu
        return gpu.with_instances(
            *(
                MigInstance(name, self._info(each).placement.start, self._compute(each, slices))
                for name, slices, each in self._instances(handle)
            )
        )

    def _instances(self, handle: Any) -> "Iterator[tuple[str, int, Any]]":
        """Profile, compute slices and handle of each."""
        for profile in self._profiles(handle):
            count = self._nvml.c_uint(profile.instanceCount)
            result = (self._nvml.c_nvmlGpuInstance_t * profile.instanceCount)()
            self._nvml.nvmlDeviceGetGpuInstances(handle, profile.id, result, self._nvml.byref(count))
            for each in result[: count.value]:
                yield _profile_name(profile), profile.sliceCount, each

    def _profiles(self, handle: Any) -> "Iterator[Any]":
        for number in range(self._nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
            with contextlib.suppress(self._nvml.NVMLError_NotSupported, self._nvml.NVMLError_InvalidArgument):
                yield self._nvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, number)

    def _compute(self, instance: Any, slices: int) -> Compute:
        instances = self._compute_instances(instance)
        if not instances:
            return Compute.NONE
        return Compute.WHOLE if [size for size, _ in instances] == [slices] else Compute.PARTS

    def _compute_instances(self, instance: Any) -> list[tuple[int, Any]]:
        """Slices and handle of each."""
        result = []
        for profile in self._compute_profiles(instance):
            count = self._nvml.c_uint(profile.instanceCount)
            handles = (self._nvml.c_nvmlComputeInstance_t * profile.instanceCount)()
            self._nvml.nvmlGpuInstanceGetComputeInstances(instance, profile.id, handles, self._nvml.byref(count))
            result += [(profile.sliceCount, each) for each in handles[: count.value]]
        return result

    def _compute_profiles(self, instance: Any) -> "Iterator[Any]":
        nvml = self._nvml
        for number in range(nvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
            with contextlib.suppress(nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):
                yield nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(
                    instance, number, nvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
                )

    def _create(self, handle: Any, step: MigInstanceStep) -> None:
        nvml = self._nvml
        profile = next((each for each in self._profiles(handle) if _profile_name(each) == step.profile), None)
        if profile is None:
            raise HardwareError(f"{step}: the driver has no such profile")
        size = self._size(handle, profile.id, step)
        placement = nvml.c_nvmlGpuInstancePlacement_t(step.start, size)
        instance = nvml.nvmlDeviceCreateGpuInstanceWithPlacement(handle, profile.id, nvml.byref(placement))
        whole = next((each for each in self._compute_profiles(instance) if each.sliceCount == profile.sliceCount), None)
        if whole is None:
            raise HardwareError(f"{step}: the driver has no compute instance over all of it")
        nvml.nvmlGpuInstanceCreateComputeInstance(instance, whole.id)

    def _size(self, handle: Any, profile: int, step: MigInstanceStep) -> int:
        nvml = self._nvml
        count = nvml.c_uint(0)
        nvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile, None, nvml.byref(count))
        placements = (nvml.c_nvmlGpuInstancePlacement_t * count.value)()
        nvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile, placements, nvml.byref(count))
        for placement in placements[: count.value]:
            if placement.start == step.start:
                return int(placement.size)
        raise HardwareError(f"{step}: the driver lets it start elsewhere alone")

    def _destroy(self, handle: Any, step: MigInstanceStep) -> None:
        instance = self._instance(handle, step)
        for _, each in self._compute_instances(instance):
            self._nvml.nvmlComputeInstanceDestroy(each)
        self._nvml.nvmlGpuInstanceDestroy(instance)

    def _instance(self, handle: Any, step: MigInstanceStep) -> Any:
        for name, _, each in self._instances(handle):
            if (name, self._info(each).placement.start) == (step.profile, step.start):
                return each
        raise HardwareError(f"{step}: there is no such instance")

    def _instance_id(self, handle: Any, step: MigInstanceStep) -> int | None:
        """None where a step before it will make the instance: everything on the GPU counts then."""
        for name, _, each in self._instances(handle):
            if (name, self._info(each).placement.start) == (step.profile, step.start):
                return int(self._info(each).id)
        return None

    def _processes(self, handle: Any, instance: int | None) -> list[Any]:
        """Those of one MIG instance, or of the whole GPU."""
        nvml = self._nvml
        result = list(nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle))
        for kind in ("Graphics", "MPSCompute"):
            with contextlib.suppress(nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
                result += getattr(nvml, f"nvmlDeviceGet{kind}RunningProcesses_v3")(handle)
        return [each for each in result if instance is None or each.gpuInstanceId == instance]

    def _info(self, instance: Any) -> Any:
        return self._nvml.nvmlGpuInstanceGetInfo(instance)

    def _handle(self, uuid: str) -> Any:
        return self._nvml.nvmlDeviceGetHandleByUUID(uuid.encode())

    @contextlib.contextmanager
    def _refusals(self, what: str) -> Iterator[None]:
        try:
            yield
        except self._nvml.NVMLError as error:
            raise HardwareError(f"{what}: {error}") from error


def _profile_name(profile: Any) -> str:
    """``1g.10gb``; drivers write ``MIG 1g.10gb``, as nvidia-smi prints it."""
    return _text(profile.name).removeprefix("MIG ")


def _text(name: Any) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)
