"""``kopt simulate``: traces replayed through the policies."""
