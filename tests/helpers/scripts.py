"""The scripts of experiments/, which are no part of the package, as modules."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def script(name: str) -> ModuleType:
    """`experiments/NAME.py`."""
    spec = importlib.util.spec_from_file_location(f"seepage_{name}", EXPERIMENTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where a dataclass looks for its module
    sys.path.insert(0, str(EXPERIMENTS))  # where it finds its own parts, as it does when it is run
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(EXPERIMENTS))
    return module
