"""One thread and no surprises: the same bits and the same examples on every run."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec

# Before torch is imported, and for every process that a test starts: their threads would wait for one another's cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A user of their own, whose key is not that of who runs the tests.
STATE = os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="seepage-tests-state-")

import pytest
import torch
from hypothesis import settings

pytest_plugins = ["dearest", "watcher"]
torch.set_num_threads(1)
# No test cuts the power; what is written is in the page cache at once, and waiting for the disk takes long.
os.fsync = lambda descriptor: None
settings.register_profile("seepage", deadline=None, derandomize=True, print_blob=False)
# New inputs in each run, by `--hypothesis-seed` the same again: so many for each test that leaves their number open.
settings.register_profile("long", deadline=None, print_blob=True, max_examples=1_000)
settings.register_profile("night", settings.get_profile("long"), max_examples=20_000)
settings.load_profile("seepage")


def pytest_unconfigure() -> None:
    shutil.rmtree(STATE, ignore_errors=True)


@pytest.fixture(autouse=True)
def _same_random_numbers() -> None:
    """PyTorch's global generator starts every test alike, whichever worker runs it and whatever ran before."""
    torch.default_generator.manual_seed(0)


def pytest_collectstart(collector: pytest.Collector) -> None:
    """So do the models that a module makes while it is imported, whichever modules came before."""
    torch.default_generator.manual_seed(0)


@pytest.fixture(autouse=True)
def _own_modules_end_with_the_test(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A module that a test wrote into its folder is not the one that the next test imports by the same name."""
    before, folder = set(sys.modules), str(tmp_path_factory.getbasetemp())
    yield
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(folder):
            del sys.modules[name]


@pytest.hookimpl(tryfirst=True)  # before marks are looked at
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Examples in docstrings belong to the documentation, and cases of an extra that is not installed are left out."""
    for item in items:
        if isinstance(item, pytest.DoctestItem):
            item.add_marker(pytest.mark.docs)
    if find_spec("timm") is not None:
        return
    missing = pytest.mark.skip(reason="the extra seepage[timm] is not installed")
    for item in items:
        values = item.callspec.params.values() if hasattr(item, "callspec") else ()
        if any(isinstance(value, str) and value.startswith("timm") for value in values):
            item.add_marker(missing)
