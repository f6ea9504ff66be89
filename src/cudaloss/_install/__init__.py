"""What is installed: the compiled binary, what may be wrong with it, and facts that setup.py reads too.

``cudaloss/__init__.py`` loads it first; ``diagnostics/`` describes it."""
