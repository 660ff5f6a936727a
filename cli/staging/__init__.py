"""``kopt stage``: data onto a disk, whole or not at all."""
