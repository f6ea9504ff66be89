"""Sphinx's configuration: ``make docs`` builds the pages of this folder, offline, with every warning an error."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent / "_ext"))

import cudaloss

project = "cudaloss"
author = "the cudaloss authors"
copyright = f"2026, {author}"
version = release = cudaloss.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "losses"]
exclude_patterns = ["_ext"]

html_theme = "furo"
html_title = f"cudaloss {version}"
html_copy_source = False
maximum_signature_line_length = 88

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints_format = "fully-qualified"
autodoc_inherit_docstrings = False  # forward and extra_repr would repeat torch.nn.Module's
napoleon_numpy_docstring = False
napoleon_preprocess_types = True
napoleon_custom_sections = [("Keywords of a call", "params_style"), "Shape"]

# PyTorch's names have their pages elsewhere, and a build without a network cannot look them up.
nitpick_ignore_regex = [("py:.*", r"torch\..*"), ("py:class", "Tensor|optional")]
