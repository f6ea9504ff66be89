"""The scripts for builds and releases. setup.py imports only `toolkit` and `compiling`."""
