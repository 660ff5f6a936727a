"""``kopt mcp``: what `kopt` reads of a cluster, as tools for assistants (Model Context Protocol)."""
