"""The Feast repository in code: entity, source, feature view, feature service and the configuration of their stores.

In: settings and a folder. Out: Feast objects. Importing ``definitions`` imports Feast (seconds, hundreds of MiB), so
only ``features.store`` does, when it is first used.
"""
