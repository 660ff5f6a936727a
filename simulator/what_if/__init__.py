"""What waits and use would have been, had a cluster been another one, on the jobs that really ran.

In: jobs with their submissions, starts and ends, and pools of GPUs as they are and as they would be. Out: figures of
both with intervals, and how well the replay of the cluster as it is agrees with the waits that were recorded.
"""
