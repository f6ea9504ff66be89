#!/usr/bin/env bash
# In a manylinux_2_28 container: of the CUDA toolkit $CUDALOSS_TOOLKIT ("12.6") what the build uses, in /usr/local/cuda,
# and a host compiler that every toolkit of tools/matrix.py takes. An empty $CUDALOSS_TOOLKIT: nothing, for a CPU build.
#
# From NVIDIA's packages, not a ready image: quay.io/manylinux_cuda has images of 12.9 and 13.1 alone. So one image, whose
# digest pyproject.toml pins, serves every variant and both machines, without the libraries that we do not link.
set -euo pipefail

toolkit=${CUDALOSS_TOOLKIT-}
if [ -z "$toolkit" ]; then
  echo 'install_cuda.sh: CUDALOSS_TOOLKIT is empty: no CUDA toolkit is installed'
  exit 0
fi
if ! [[ $toolkit =~ ^[0-9]+\.[0-9]+$ ]]; then
  echo "install_cuda.sh: CUDALOSS_TOOLKIT must be a toolkit's version, as 13.0, or empty for none, got '$toolkit'" >&2
  exit 1
fi
case $(uname -m) in
  x86_64) repository=x86_64 ;;
  aarch64) repository=sbsa ;; # servers' ARM, which NVIDIA names so
  *)
    echo "install_cuda.sh: NVIDIA has no toolkit for $(uname -m): x86_64 and aarch64 are built" >&2
    exit 1
    ;;
esac

dnf config-manager --add-repo "https://developer.download.nvidia.com/compute/cuda/repos/rhel8/$repository/cuda-rhel8.repo"
version=${toolkit/./-}
# nvcc with its headers and NVVM, the static runtime, CCCL. The image's GCC 14 is newer than CUDA 12.6 takes: 13 is its last.
dnf install --assumeyes --setopt=install_weak_deps=False \
  "cuda-nvcc-$version" "cuda-cudart-devel-$version" "cuda-cccl-$version" gcc-toolset-13-gcc-c++
ln -sfn "/usr/local/cuda-$toolkit" /usr/local/cuda
