"""Text in, core types out: parsers of tool outputs, trainer arguments and collective logs.

Pure functions on the standard library only, but for ``yaml_text``, which decodes YAML within bounds; the others take
the mapping from their caller.
"""
