"""Sparse training that is cheap, robust and real."""

__version__ = "0.1.0"
