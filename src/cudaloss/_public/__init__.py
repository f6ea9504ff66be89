"""The public ops, and what the public functions call: the hot path, and where every other call enters.

``functional.py`` calls :mod:`.functions`; ``torch.ops.cudaloss`` calls :mod:`.ops`."""
