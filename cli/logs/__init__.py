"""``kopt logs``: what training logs say."""
