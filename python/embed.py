"""Run once by the program, before any other Python: makes the embedded package importable and keeps coremltools quiet.

`SOURCES` is in the namespace: module name to (is it a package, source text).
"""

import gc
import importlib.abc
import importlib.util
import logging
import os
import sys
import warnings
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType

SOURCES: dict[str, tuple[bool, str]] = globals()["SOURCES"]


class Embedded(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Finds and loads the modules of `SOURCES`; tracebacks show their lines through `get_source`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of an embedded module, None for any other."""
        if fullname not in SOURCES:
            return None
        return importlib.util.spec_from_loader(fullname, self, origin="embedded", is_package=SOURCES[fullname][0])

    def is_package(self, fullname: str) -> bool:
        """Whether the module has modules below it."""
        return SOURCES[fullname][0]

    def get_source(self, fullname: str) -> str:
        """The module's text."""
        return SOURCES[fullname][1]

    def get_code(self, fullname: str) -> CodeType:
        """The module, compiled."""
        return compile(self.get_source(fullname), f"<embedded>/{fullname}", "exec", dont_inherit=True)


# stdout carries the program's data.
sys.stdout = sys.stderr
# coremltools draws progress bars, and warns of the parts it lacks off macOS.
os.environ["TQDM_DISABLE"] = "1"
logging.getLogger("coremltools").setLevel(logging.ERROR)
warnings.simplefilter("ignore")
# One BLAS thread: products summed in one order whatever the number of processors.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
sys.meta_path.insert(0, Embedded())

gc.disable()
importlib.import_module("anebake.bake")
# What is imported stays; later collections need not look at it.
gc.freeze()
gc.enable()
