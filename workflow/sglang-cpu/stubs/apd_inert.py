"""Importable, never callable: stands in for packages that SGLang imports on start and a text-only CPU server never uses.

There is no CPU build of sgl_kernel to install, and PyPI's torchvision does not load beside a CPU build of torch. Any name
under a stand-in can be imported, subclassed or compared; calling one raises, so that a run that does need it fails aloud.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType


class _InertType(type):
    """A class whose attributes are inert classes too, to any depth."""

    def __getattr__(cls, name: str) -> type:
        return _inert(f"{cls.__qualname__}.{name}", name)


def _inert(path: str, name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(f"{path} (an inert stand-in has no special names)")

    def refuse(self: object, *args: object, **kwargs: object) -> None:
        raise NotImplementedError(f"{path} was called, but only an inert stand-in for it is installed here (no CPU build exists)")

    return _InertType(path, (), {"__init__": refuse})


class _InertModule(ModuleType):
    def __getattr__(self, name: str) -> type:
        value = _inert(f"{self.__name__}.{name}", name)
        setattr(self, name, value)
        return value


class _Submodules:
    """Finds and loads every `package.anything.below`."""

    def __init__(self, package: str) -> None:
        self.prefix = package + "."

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.startswith(self.prefix) else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _InertModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__path__ = []  # type: ignore[attr-defined]


def make_inert(package: str) -> None:
    """Called by the stand-in's own __init__: everything under `package` becomes inert."""
    sys.modules[package].__class__ = _InertModule
    sys.meta_path.insert(0, _Submodules(package))  # type: ignore[arg-type]
