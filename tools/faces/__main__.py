from __future__ import annotations

from tools import specs

with specs.without_init() as package:
    from tools.faces import source

    for name, text in source.files().items():
        (package / name).write_text(text, encoding="utf-8")
