"""One client in a process of its own: ``python clients/one.py <client> torch|cudaloss <file>``.

The file gets the client's results, tensors by name, and the calls that went through cudaloss.
"""

from __future__ import annotations

import importlib
import sys
import warnings

import swap
import torch


def main() -> None:
    client, losses, file = sys.argv[1:]
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)  # sums in one order
    if losses == "cudaloss":
        swap.swap()
    results = importlib.import_module(f"with_{client}").results()
    torch.save({"results": results, "calls": dict(swap.calls)}, file)


if __name__ == "__main__":
    main()
