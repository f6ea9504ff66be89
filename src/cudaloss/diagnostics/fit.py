"""Whether the build fits the machine: pure functions of the facts. Each problem has its remedy."""

from __future__ import annotations

from typing import Any, NamedTuple

from .._install.binary import FROM_SDIST, Fault
from .coverage import Code, codes, covering
from .facts import Driver, Gpu

CPU_KERNELS, CUDA_KERNELS, PLAIN, NONE = "compiled CPU kernels", "compiled CUDA kernels", "plain PyTorch", "an error"
CPU_ONLY = f"Build it for the CPU: CUDALOSS_CUDA=0 {FROM_SDIST}."
CUDA_TORCH = "Install a torch for it: https://pytorch.org/get-started/locally."


class Problem(NamedTuple):
    """What does not fit, and what to do."""

    cause: str  # one word; docs/diagnostics.md lists them
    message: str


class Path(NamedTuple):
    """How a loss runs on a device."""

    name: str
    reason: str


class Here(NamedTuple):
    """The facts to judge."""

    info: dict[str, Any]  # _C.build_info()
    fault: Fault | None
    binary: Any  # the module _C; its messages for a GPU or driver that does not fit are those of a launch
    torch: dict[str, Any]
    driver: Driver | None
    gpus: list[Gpu]
    torch_says: str  # its message if it cannot use the GPUs
    hidden: bool  # CUDA_VISIBLE_DEVICES is set

    @property
    def is_hidden(self) -> bool:
        """Whether the variable explains that torch sees no GPU; torch itself then gives no message."""
        return self.hidden and not self.torch_says

    def code_for(self, gpu: Gpu) -> Code | None:
        return gpu.capability and covering(codes(self.info.get("cuda_architectures", "")), gpu.capability)


def _of_driver(here: Here) -> Problem | None:
    """Whether the driver is too old for the build."""
    cuda = here.info["cuda"]
    if not here.driver or not here.binary.is_old_driver(here.driver.cuda, cuda):
        return None
    return Problem("driver", here.binary.explain_old_driver(here.driver.cuda, cuda))


def of_gpu(here: Here, gpu: Gpu) -> Problem | None:
    """Why a CUDA build's kernels do not run on one of NVIDIA's GPUs."""
    assert gpu.capability
    cuda, code = here.info["cuda"], here.code_for(gpu)
    if code is None:
        message = here.binary.explain_uncovered(*gpu.capability, cuda, here.info["cuda_architectures"])
        return Problem("uncovered", f"{gpu.device}: {message}")
    if problem := _of_driver(here):
        return problem
    major, minor = (int(part) for part in cuda.split(".")[:2])
    if code.kind == "PTX" and here.driver and here.driver.cuda < major * 1000 + minor * 10:
        message = here.binary.explain_old_driver_for_ptx(*gpu.capability, here.driver.cuda, cuda)
        return Problem("ptx", f"{gpu.device}: {message}")
    return None


def path(here: Here, device: str, gpu: Gpu | None, registered: bool) -> Path:
    """How a loss runs there. `registered`: whether PyTorch has its compiled kernel for the device's type."""
    if here.fault:
        return Path(PLAIN, "the compiled kernels could not be loaded")
    if gpu is None:
        return Path(CPU_KERNELS, "built for this processor") if registered else Path(PLAIN, "not built")
    if here.torch["rocm"] and registered:  # ROCm's tensors have the device type of CUDA
        return Path(NONE, "CUDA kernels do not run under ROCm")
    if gpu.capability is None:
        return Path(PLAIN, f"cudaloss has no kernels for {gpu.name}")
    if not registered:
        return Path(PLAIN, "this build has no CUDA kernels")
    if problem := of_gpu(here, gpu):
        return Path(NONE, problem.message)
    code = here.code_for(gpu)
    assert code
    return Path(CUDA_KERNELS, f"{code.kind} of {code}")


def problems(here: Here) -> list[Problem]:
    """All problems, except those that only a test shows."""
    found = []
    if here.fault:
        found.append(Problem(here.fault.cause, here.fault.text))
    elif here.torch["rocm"] and here.info["cuda"]:
        found.append(Problem("rocm", f"torch is a build for ROCm, cudaloss for CUDA. {CPU_ONLY}"))
    elif any(gpu.capability for gpu in here.gpus):
        found += _of_gpus(here)
    unseen = here.driver.gpus if here.driver and not here.gpus else 0
    if unseen and here.torch["cuda"] and not here.is_hidden:
        said = f": {here.torch_says}" if here.torch_says else ""
        message = f"the driver sees {unseen} GPU(s), but torch {here.torch['version']} cannot use them{said}."
        found.append(Problem("torch-cuda", f"{message} {CUDA_TORCH}"))
    return found


def _of_gpus(here: Here) -> list[Problem]:
    nvidia = [gpu for gpu in here.gpus if gpu.capability]
    if here.info["cuda"]:
        found = [problem for gpu in nvidia if (problem := of_gpu(here, gpu))]
        return list(dict.fromkeys(found))  # a driver's problem only once
    message = (
        f"torch sees {len(nvidia)} NVIDIA GPU(s), and this build has only CPU kernels: losses on a GPU run as plain "
        "PyTorch, slower. Install a build with CUDA kernels, in a variant for your driver (docs/wheels.md): "
        "pip install --force-reinstall --no-deps cudaloss, or from source with a CUDA toolkit: CUDALOSS_CUDA=1 "
        f"{FROM_SDIST}."
    )
    return [Problem("cpu-build", message)]


def notes(here: Here) -> list[str]:
    """Remarks that are not problems."""
    found = []
    if here.driver and here.driver.gpus and not here.gpus:
        if here.is_hidden:
            found.append("CUDA_VISIBLE_DEVICES is set, and torch sees no GPU.")
        elif not here.torch["cuda"] and not here.torch["rocm"]:
            seen = f"The driver sees {here.driver.gpus} GPU(s), and torch {here.torch['version']} has no CUDA"
            found.append(f"{seen}: everything runs on the CPU. {CUDA_TORCH}")
    return found
