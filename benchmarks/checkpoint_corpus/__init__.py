"""Logs of real trainers, labelled by what their checkpoint folders saw: `make corpus` records them, tests read them.

Each program of ``manifest.toml`` runs on the CPU, on tiny data, with a checkpoint folder that is as slow as network
storage (``slow_storage.c``). ``recording`` notes when each line of its log arrived and what happened in the folder;
``truth`` turns that into a record: between which lines a checkpoint was being written, and which step it made durable.
``labels`` adds what each line says, by patterns that know each program's text. Logs and records lie in ``logs/``.
"""
