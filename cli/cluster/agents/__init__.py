"""Commands of what runs on nodes and inside pods."""
