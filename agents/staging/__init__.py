"""Staging: brings what a job reads onto a disk near it, before the job holds a GPU.

In: a source (object stores, https, the Hugging Face hub, git, a mounted claim) and a folder. Out: the files, each whole
under its name, and a manifest that is written last: a folder without it, or with the marker, is no copy.

Parts that were fetched are journaled beside the data and never fetched again, however the process ends. Credentials
come from the environment and the files that the libraries read, and are never printed.
"""
