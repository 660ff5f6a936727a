"""Text in, core types out: parsers of tool outputs, trainer arguments and collective logs.

Pure functions on the standard library only. YAML is decoded by the caller with a safe loader;
these functions take the mapping.
"""
