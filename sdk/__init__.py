"""What ``import kopt`` offers to notebooks and scripts; every name is loaded when it is first used.

Comes in: frames, logs, topologies. Goes out: the objects behind the command line's JSON. Only commands and pages
import it.
"""
