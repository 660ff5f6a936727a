"""The frozen suite of sizing: programs in ``scripts/``, and ``manifest.toml``, which says how each is run.

Out: ``read_suite()``, the entries. The programs measure nothing themselves; ``benchmarks.measure`` runs them on a GPU,
and the benchmark of sizing compares its estimates with what was measured. ``python -m benchmarks.sizing_suite`` prints
the digests of the files as they are now, for entries that are new.
"""

from benchmarks.sizing_suite.manifest import FOLDER, MANIFEST, SuiteEntry, SuiteError, digests_now, read_suite

__all__ = ["FOLDER", "MANIFEST", "SuiteEntry", "SuiteError", "digests_now", "read_suite"]
