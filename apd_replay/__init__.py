"""Replay agent traces against prefill/decode clusters of SGLang, and decide claims about the runs."""

__version__ = "0.1.0"
