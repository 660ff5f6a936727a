"""A kubelet whose containers are local processes, so that pods of the tests truly run.

It registers a node with the real API server under a node's own certificate (Node authorizer and NodeRestriction
apply), renews its lease, and runs the pods that the scheduler binds to it: command and arguments, environment with
references to Secrets, ConfigMaps and fields, init containers and sidecars, restart policies, probes, exit codes,
SIGTERM with grace, logs through the API server, and volumes (emptyDir, hostPath, claims bound to hostPath, Secrets,
ConfigMaps, projected tokens) as folders.

There are no images and no namespaces: a pod gives its command, or the kubelet is told what stands for its image, and
shares the machine's files and network. Where a mount path occurs in the command, the environment or the working
directory, the folder takes its place, and a mount below another one is a link there; /tmp is a short path, for
sockets. Each pod has a loopback address of its own (``status.podIP``); with a ``PodNetwork`` it has a network and
processes of its own, and the names of Services, as in a cluster. With a ``DeviceManager`` device plugins register
and pods have devices, as the PodResources API says. ``KUBECONFIG`` leads to the API server with the pod's own token.
"""

from controlplane.kubelet.devices import DeviceManager
from controlplane.kubelet.network import PodNetwork
from controlplane.kubelet.node import Kubelet

__all__ = ["DeviceManager", "Kubelet", "PodNetwork"]
