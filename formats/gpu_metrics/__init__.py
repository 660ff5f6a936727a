"""What GPU tools and exporters print, as samples: nvidia-smi, rocm-smi, amd-smi, dcgm-exporter, AMD's exporter.

In: text (or exposition samples that the caller has decoded). Out: ``GpuSample`` and ``ProcessSample``. Truncated or
malformed input raises ``MetricsError`` with its line; nothing is guessed, and what a tool does not know is None.
"""

from kopt.formats.gpu_metrics.samples import GpuSample, MetricsError, ProcessSample

__all__ = ["GpuSample", "MetricsError", "ProcessSample"]
