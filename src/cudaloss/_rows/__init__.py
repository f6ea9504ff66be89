"""The losses' rows, each with the formulas that it names."""
