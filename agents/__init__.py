"""Agents run on a node or beside a pod and send what they see: topology, profiles, log events.

In: tool outputs, log streams. Out: custom resources and prediction requests.
No machine-learning package is imported here: an agent must stay small.
"""
