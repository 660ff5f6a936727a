"""A small speech recogniser: python -m asr.train"""
