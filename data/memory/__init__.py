"""Measured GPU memory of training and inference runs: public tables → ``MemoryRun`` rows.

In: the CSV files of a folder (``KOPT_DATA_DIR/memory``) as their sources publish them, each with units and metrics of
its own. Out: one typed table in bytes (``table``). ``read_memory_runs`` reads whatever files are there.
"""

from kopt.data.memory.load import read_memory_runs
from kopt.data.memory.table import Category, MemoryDataError, MemoryRun, MemoryTable

__all__ = ["Category", "MemoryDataError", "MemoryRun", "MemoryTable", "read_memory_runs"]
