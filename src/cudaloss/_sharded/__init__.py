"""Losses of DTensors. ``_public/entry.py`` imports :mod:`.loss` at the first one."""
