"""What builds and releases need: setup.py imports `toolkit` and `compiling`, the other modules are scripts."""
