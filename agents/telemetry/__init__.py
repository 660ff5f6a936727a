"""GPU telemetry of a node (``kopt agent telemetry``): what its GPUs do, by the pods that have them, for Prometheus.

In: NVML or AMD's library in a process of its own (drivers hang), or the exporter of NVIDIA or AMD where one runs; and
the kubelet's PodResources. Out: ``/metrics``, made once per reading, so that a scrape waits for nothing. What cannot be
read is absent, never zero. The fields are those of ``core.hardware.gpu_telemetry``.
"""
