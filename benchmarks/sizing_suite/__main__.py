"""Prints the ``[digests]`` table that ``manifest.toml`` should hold."""

import tomllib

from benchmarks.sizing_suite import MANIFEST, digests_now

print("[digests]")
for file, digest in digests_now(tomllib.loads(MANIFEST.read_text())).items():
    print(f'"{file}" = "{digest}"')
