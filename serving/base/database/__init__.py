"""What the endpoint keeps between requests: one interface, on SQLite or PostgreSQL.

In: SQL that both understand, with ``?`` for values. Out: rows, or DatabaseError. No SQL is made from what callers send.
"""
