"""Sphinx's configuration: ``make docs`` builds the pages of this folder, offline, with every warning an error."""

from __future__ import annotations

import sys
from pathlib import Path

import cudaloss

HERE = Path(__file__).parent
sys.path += [str(HERE / "_ext"), str(HERE.parent / "benchmarks")]  # which writes the tables of a report

project = "cudaloss"
author = "the cudaloss authors"
copyright = f"2026, {author}"
version = release = cudaloss.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "catalogue",  # docs/_ext: the pages of docs/losses
    "formulas",
    "schemas",
]
exclude_patterns = ["_ext", "_inventory", "_static"]

html_theme = "furo"
html_title = f"cudaloss {version}"
html_copy_source = False
html_static_path = ["_static"]
html_favicon = "_static/favicon.svg"
html_css_files = ["custom.css"]
html_math_renderer = "mathml"  # docs/_ext/formulas.py: no script, no network
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
maximum_signature_line_length = 88

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints_format = "fully-qualified"
autodoc_inherit_docstrings = False  # forward and extra_repr would repeat torch.nn.Module's
napoleon_numpy_docstring = False
napoleon_preprocess_types = True
napoleon_custom_sections = [("Keywords of a call", "params_style"), "Shape"]

# The names of PyTorch that the pages link to, stored so that a build needs no network.
intersphinx_mapping = {"torch": ("https://docs.pytorch.org/docs/stable/", "_inventory/torch.txt")}
# Names without a page: what docstrings call tensors and numbers, and a class that PyTorch documents elsewhere.
nitpick_ignore_regex = [
    ("py:class", r"Tensor|optional|ints|types\.ModuleType|torch\.distributed\.(distributed_c10d\.)?ProcessGroup"),
    ("py:class", r"torch\.nn\.modules\.module\.Module|transformers\.PreTrainedModel"),
]
