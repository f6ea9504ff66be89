"""Timings of cudaloss beside PyTorch's, in one process: ``python -m cudaloss.bench``."""
