"""The scheduler's calls, as they come in and are answered."""
