"""Names of a package that are imported when they are first asked for (PEP 562)."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(
    package: str, names_by_module: Mapping[str, tuple[str, ...]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package that hands on names of modules.

    A name that is another one in its module is written "public:private".
    """
    places = {
        public: (module, private or public)
        for module, names in names_by_module.items()
        for public, _, private in (name.partition(":") for name in names)
    }

    def getattr_(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, private = places[name]
        value = getattr(importlib.import_module(module), private)
        setattr(sys.modules[package], name, value)
        return value

    public = sorted(places)
    return getattr_, lambda: public, public
