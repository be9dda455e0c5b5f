"""Runs tools/setup.py under this interpreter, which claims to be another one: `other_python.py CASE [ARGUMENT…]`."""

import importlib.util
import sys
import sysconfig
import types
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).parents[2] / "tools" / "setup.py"


def claim(**variables: object) -> None:
    """Makes `sysconfig` answer differently for some variables."""
    real = sysconfig.get_config_var

    def answer(name: str) -> Any:
        return variables[name] if name in variables else real(name)

    sysconfig.get_config_var = answer


def become(case: str) -> None:
    """Turns this interpreter into that of a case, as far as the script looks."""
    if case == "too_old":
        sys.version_info = (3, 9, 1, "final", 0)
    elif case == "too_new":
        sys.version_info = (3, 14, 0, "final", 0)
    elif case == "not_cpython":
        sys.implementation = types.SimpleNamespace(name="pypy")
    elif case == "static":
        claim(PYTHONFRAMEWORK="", Py_ENABLE_SHARED=0)
    elif case == "no_library":
        claim(PYTHONFRAMEWORK="", Py_ENABLE_SHARED=1, LDLIBRARY="libpython-none.so")
    elif case != "as_it_is":
        sys.exit(f"no case `{case}`")


spec = importlib.util.spec_from_file_location("setup", SCRIPT)
if spec is None or spec.loader is None:
    sys.exit(f"no script at {SCRIPT}")
setup = importlib.util.module_from_spec(spec)
spec.loader.exec_module(setup)
case = sys.argv.pop(1)
become(case)
setup.main()
