"""The table of losses: a row for each, its own arguments, and the keywords of all.

Everything else is made from it: ops, functions, modules, documentation, tests, benchmarks, and setup.py's sources."""
