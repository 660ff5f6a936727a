"""Sharing of a GPU by processes: what each mode keeps apart, and which executor can set it, as data.

In: nothing. Out: tables that ``policies.fractions`` decides by, and pages and commands show.
"""
