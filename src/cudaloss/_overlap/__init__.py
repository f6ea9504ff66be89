"""Losses of how much probabilities and targets overlap: a few sums over the voxels of each sample and class, by kernels
that read the logits once, and formulas of these sums (``csrc/core/overlap.h``). :mod:`cudaloss.overlap` calls it.
"""
