"""Imports go one way, and `import seepage` stays light."""

import ast
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = {
    "torchvision", "timm", "matplotlib", "mlxtend", "sklearn", "skimage", "torchmetrics", "typer", "rich", "jinja2",
    "PIL", "pandas", "scipy", "flwr", "opacus",
}  # fmt: skip


def loaded(statement: str) -> set[str]:
    """Names of the packages that a statement imports in a fresh Python."""
    command = [sys.executable, "-c", f"{statement}; import sys; print(*sys.modules)"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=os.path.dirname(__file__))
    return {name.partition(".")[0] for name in done.stdout.split()}


def test_no_two_classes_have_one_name() -> None:
    found = [
        node.name
        for path in (ROOT / "src").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    ]
    assert [name for name, count in Counter(found).items() if count > 1] == []


@pytest.mark.slow
def test_import_seepage_loads_nothing_heavy() -> None:
    assert "torch" not in loaded("import seepage, seepage.cli.commands")
    found = loaded("import seepage; seepage.attack")
    assert "torch" in found
    # torch itself may load some of these; what it does not, seepage must not either.
    assert not (found & HEAVY) - loaded("import torch, safetensors.torch, torch.func")


SSIM = "from seepage.measure.metrics.image import ssim; import torch; x = torch.rand(1, 1, 16, 16); ssim(x, x)"
"""torchmetrics takes longer to import than all SSIMs of the default audit take to compute."""


@pytest.mark.parametrize(
    ("statement", "heavy"),
    [
        ("import seepage.audit.row, seepage.audit.gate", {"torch"}),
        (SSIM, {"torchmetrics"}),
        pytest.param("import seepage.federation.data", HEAVY, marks=pytest.mark.slow),
        pytest.param("import seepage.measure.metrics", HEAVY, marks=pytest.mark.slow),
    ],
)
def test_a_room_loads_nothing_heavy(statement: str, heavy: set[str]) -> None:
    assert not loaded(statement) & heavy


STARTED = """
import sys, time
from seepage.cli import main
sys.argv[0] = "seepage"
try:
    main()
finally:
    print(time.process_time(), *sys.modules, file=sys.stderr)
"""


def started(*command: str) -> tuple[float, set[str]]:
    """Seconds of processor time that a command takes, and the packages that it loads."""
    done = subprocess.run([sys.executable, "-c", STARTED, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    seconds, *modules = done.stderr.splitlines()[-1].split()
    return float(seconds), {name.partition(".")[0] for name in modules}


def test_help_starts_at_once() -> None:
    seconds, packages = started("--help")
    assert not packages & {"torch", "numpy", "scipy", "sklearn", "matplotlib"}
    assert seconds < 2  # it takes 0.3 s of processor time; a busy machine counts some more


@pytest.mark.slow
def test_a_listing_loads_the_parts_and_nothing_that_only_a_run_needs() -> None:
    _, packages = started("list", "--json")
    assert "torch" in packages
    assert not packages & {"torchvision", "matplotlib", "timm", "transformers"}


def test_imports_go_one_way() -> None:
    pytest.importorskip("importlinter")
    if not (ROOT / "pyproject.toml").exists():
        pytest.skip("the contracts stand in pyproject.toml, which is not here")
    program = "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(cache_dir=None))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 broken" in done.stdout
