"""Messages of the kubelet's gRPC services, as their ``api.proto`` declare them, encoded by Google's protobuf.

PodResources v1 (``k8s.io/kubelet/pkg/apis/podresources/v1``) and device plugins v1beta1
(``k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1``), both of 1.36.3.
"""

import os
from typing import Any

# Containers are started by fork and exec, which gRPC need not know of.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {"string": _Field.TYPE_STRING, "bool": _Field.TYPE_BOOL, "int32": _Field.TYPE_INT32}
_POD_RESOURCES = {
    "ListPodResourcesRequest": {},
    "ListPodResourcesResponse": {"pod_resources": (1, "*PodResources")},
    "AllocatableResourcesRequest": {},
    "AllocatableResourcesResponse": {"devices": (1, "*ContainerDevices")},
    "PodResources": {"name": (1, "string"), "namespace": (2, "string"), "containers": (3, "*ContainerResources")},
    "ContainerResources": {
        "name": (1, "string"),
        "devices": (2, "*ContainerDevices"),
        "dynamic_resources": (5, "*DynamicResource"),
    },
    "ContainerDevices": {"resource_name": (1, "string"), "device_ids": (2, "*string")},
    "DynamicResource": {
        "claim_name": (2, "string"),
        "claim_namespace": (3, "string"),
        "claim_resources": (4, "*ClaimResource"),
    },
    "ClaimResource": {"driver_name": (2, "string"), "pool_name": (3, "string"), "device_name": (4, "string")},
}
_PLUGIN = {
    "Empty": {},
    "DevicePluginOptions": {"pre_start_required": (1, "bool"), "get_preferred_allocation_available": (2, "bool")},
    "RegisterRequest": {
        "version": (1, "string"),
        "endpoint": (2, "string"),
        "resource_name": (3, "string"),
        "options": (4, "DevicePluginOptions"),
    },
    "ListAndWatchResponse": {"devices": (1, "*Device")},
    "Device": {"ID": (1, "string"), "health": (2, "string")},
    "PreferredAllocationRequest": {"container_requests": (1, "*ContainerPreferredAllocationRequest")},
    "ContainerPreferredAllocationRequest": {
        "available_deviceIDs": (1, "*string"),
        "must_include_deviceIDs": (2, "*string"),
        "allocation_size": (3, "int32"),
    },
    "PreferredAllocationResponse": {"container_responses": (1, "*ContainerPreferredAllocationResponse")},
    "ContainerPreferredAllocationResponse": {"deviceIDs": (1, "*string")},
    "AllocateRequest": {"container_requests": (1, "*ContainerAllocateRequest")},
    "ContainerAllocateRequest": {"devices_ids": (1, "*string")},
    "AllocateResponse": {"container_responses": (1, "*ContainerAllocateResponse")},
    "ContainerAllocateResponse": {"envs": (1, "*EnvsEntry")},
    # A map<string, string> on the wire.
    "EnvsEntry": {"key": (1, "string"), "value": (2, "string")},
}


def _declared(package: str, messages: dict[str, Any]) -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            plain = kind.removeprefix("*")
            label = _Field.LABEL_REPEATED if kind != plain else _Field.LABEL_OPTIONAL
            added = message.field.add(name=field, number=number, label=label)
            if plain in _SCALARS:
                added.type = _SCALARS[plain]
            else:
                added.type, added.type_name = _Field.TYPE_MESSAGE, f".{package}.{plain}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in messages}


POD_RESOURCES = _declared("v1", _POD_RESOURCES)
PLUGIN = _declared("v1beta1", _PLUGIN)
