"""Facts about the build and the machine, as plain data. A missing GPU, driver or binary raises nothing here."""

from __future__ import annotations

import ctypes
import platform
import sysconfig
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .. import __version__
from .._install.build import FAULT, INFO
from .coverage import codes


class Driver(NamedTuple):
    """NVIDIA's driver."""

    version: str | None  # "580.65.06"
    cuda: int  # 13000: the newest CUDA that it supports
    gpus: int  # how many it sees, even if torch does not


class Gpu(NamedTuple):
    """An accelerator that torch sees."""

    device: str
    name: str
    capability: tuple[int, int] | None  # None: not NVIDIA's


def package() -> dict[str, Any]:
    built = codes(INFO.get("cuda_architectures", ""))
    return {
        "version": __version__,
        "folder": str(Path(__file__).parent.parent),
        "compiled": FAULT is None,
        "cuda": INFO["cuda"],
        "architectures": INFO.get("cuda_architectures", ""),
        "sass": [str(code) for code in built if code.kind == "SASS"],
        "ptx": [str(code) for code in built if code.kind == "PTX"],
        "torch_target": INFO.get("torch_target"),
        "compiler": INFO.get("compiler"),
        "csrc_tree": INFO.get("csrc_tree"),
        "losses": INFO["losses"],
    }


def python() -> dict[str, Any]:
    return {
        "version": platform.python_version(),
        "implementation": platform.python_implementation(),
        "extension_suffix": sysconfig.get_config_var("EXT_SUFFIX"),
    }


def torch_here() -> dict[str, Any]:
    return {"version": torch.__version__, "cuda": torch.version.cuda, "rocm": torch.version.hip}


def driver() -> Driver | None:
    """From the driver's own libraries, so that a torch without CUDA finds it too; None if there is none."""
    cuda = ctypes.c_int(0)
    try:
        if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(cuda)) != 0:
            return None
    except (OSError, AttributeError):
        return None
    version, gpus = _of_nvml()
    return Driver(version, cuda.value, gpus)


def _of_nvml() -> tuple[str | None, int]:
    """The driver's version and how many GPUs it sees."""
    text, count = ctypes.create_string_buffer(96), ctypes.c_uint(0)
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        if nvml.nvmlInit_v2() != 0:
            return None, 0
        known = nvml.nvmlSystemGetDriverVersion(text, len(text)) == 0
        nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
        nvml.nvmlShutdown()
    except (OSError, AttributeError):
        return None, 0
    return text.value.decode() if known else None, count.value


def gpus() -> tuple[list[Gpu], str]:
    """The accelerators that torch sees, and torch's message if it cannot use them."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            found = _accelerators()
        except Exception as error:  # a driver that answers first and fails later
            return [], f"{type(error).__name__}: {error}"
    return found, " ".join(str(warning.message) for warning in said)


def _accelerators() -> list[Gpu]:
    if not torch.accelerator.is_available():
        return []
    accelerator = torch.accelerator.current_accelerator()
    assert accelerator is not None
    devices = [f"{accelerator.type}:{index}" for index in range(torch.accelerator.device_count())]
    if accelerator.type != "cuda":
        return [Gpu(device, accelerator.type, None) for device in devices]
    found = []
    for device in devices:
        properties = torch.cuda.get_device_properties(device)
        capability = None if torch.version.hip else (properties.major, properties.minor)
        found.append(Gpu(device, properties.name, capability))
    return found
