"""The losses' rows, with the formulas that they name."""
