"""Writes the public functions and modules: ``make faces``, after each change of the rows."""
