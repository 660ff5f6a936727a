"""NVIDIA NeMo: recipes of NeMo 2 by name, and the Hydra configurations of NeMo 1 and NeMo-Aligner.

Both end as Megatron-core's arguments, which ``formats.trainers.megatron`` knows.
"""
