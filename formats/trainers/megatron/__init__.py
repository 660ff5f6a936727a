"""Megatron-LM, and what builds on it: ms-swift's Megatron, GPT-NeoX."""
