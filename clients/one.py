"""One client in a process of its own: ``python clients/one.py with_<client>|tests_of_<client> torch|cudaloss <file>``.

The file gets the client's results by name (tensors, or how its tests ended), and the calls that went through cudaloss.
"""

from __future__ import annotations

import importlib
import os
import sys
import warnings

import swap
import torch

OFFLINE = {"HF_HUB_OFFLINE": "1", "YOLO_OFFLINE": "true"}  # what downloads fails at once


def main() -> None:
    module, losses, file = sys.argv[1:]
    os.environ |= {**OFFLINE, "YOLO_CONFIG_DIR": os.getcwd()}  # ultralytics' settings do not go into the user's
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)  # sums in one order
    if losses == "cudaloss":
        swap.swap(module.removeprefix("with_").removeprefix("tests_of_"))
    results = importlib.import_module(module).results()
    torch.save({"results": results, "calls": dict(swap.calls)}, file)


if __name__ == "__main__":
    main()
