"""``kopt reasons``: what the codes of answers mean."""
