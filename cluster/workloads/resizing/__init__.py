"""Pods whose resources are changed while they run: what they used, the change and its record, and taking it back."""
