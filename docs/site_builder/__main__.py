"""Build the documentation site: `pip install '.[docs]'`, then `python docs/site_builder`; the pages go to site/.

A warning of the builder, a link that leads nowhere, or a page that loads anything from another server fails the build.
"""

import argparse
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path
from typing import Any

import tomli_w
from checking import problems
from generated import add_generated
from navigation import resolve
from staging import ROOT, Staged, stage_written


def main() -> int:
    """Stage, build, check. Exit code 0 for a site without a fault."""
    parser = argparse.ArgumentParser(prog="python docs/site_builder", description="Build the documentation site.")
    parser.add_argument("--out", type=Path, default=ROOT / "site", help="folder of the site, replaced; default: site/")
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="folder for intermediate files")
    options = parser.parse_args()
    if options.out.exists() and any(options.out.iterdir()) and not (options.out / "sitemap.xml").exists():
        parser.error(f"{options.out} holds something else than a site, and would be replaced; name another --out")
    staged = stage_written()
    add_generated(staged)
    config = _configure(staged, options.build.resolve())
    built = subprocess.run([_zensical(), "build", "--strict", "--clean", "--config-file", str(config)], check=False)
    if built.returncode:
        return built.returncode
    shutil.rmtree(options.out, ignore_errors=True)
    shutil.move(config.parent / "site", options.out)
    found = problems(options.out.resolve())
    print("\n".join([*found, f"{len(staged.pages)} pages, {len(found)} problems"]))
    return 1 if found else 0


def _configure(staged: Staged, build: Path) -> Path:
    """Write the staged pages, and zensical.toml with the pages that there are."""
    for old in ("docs", "site"):
        shutil.rmtree(build / old, ignore_errors=True)
    staged.write(build / "docs")
    config = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))
    project: dict[str, Any] = config["project"]
    project["nav"] = resolve(project["nav"], list(staged.pages))
    python = project["plugins"]["mkdocstrings"]["handlers"]["python"]
    python["paths"] = [str(ROOT / "src")]
    python["options"]["extensions"] = [f"{Path(__file__).with_name('doctests.py')}:Doctests"]
    path = build / "zensical.toml"
    path.write_text(tomli_w.dumps(config), encoding="utf-8")
    return path


def _zensical() -> str:
    """The builder of this environment, also where its folder is not on the path."""
    return str(Path(sysconfig.get_path("scripts")) / "zensical")


if __name__ == "__main__":
    sys.exit(main())
