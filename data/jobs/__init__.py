"""Job and pod traces become requests in the words of ``core``.

In: the CSV files of public traces as they are published. Out: nodes and pods with their requests.
"""
