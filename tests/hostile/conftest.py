"""Finished runs of one's own, made once, that strangers' copies are made of."""

from pathlib import Path

import pytest

AUDIT = (
    "data.size=6", "model.use=fc2", "model.hidden=4", "batch.size=12", "batch.count=1", "training.steps=0",
    "attack.steps=2",
)  # fmt: skip


@pytest.fixture(scope="session")
def goods(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished audit, `run`; its `pack`, signed by `auditor.pem`; `attacked`, without its truth."""
    from small import small_batch, write_observed

    from seepage.audit.recorded import AttackRequest, attack_only
    from seepage.audit.run import run
    from seepage.cli.options import SimulationOptions, tables_of
    from seepage.federation.transcript.truth import save_truth
    from seepage.report import write_grid, write_report
    from seepage.report.evidence import PackRequest, make_keys, write_pack

    shared = tmp_path_factory.mktemp("goods")
    tables = tables_of(None, SimulationOptions(data="digits", settings=list(AUDIT)), attacks=["linear", "dlg"])
    more = {"membership": {"tests": ["gradient_cosine"], "level": 0.05}, "bounds": {"where": "all"}}
    run(tables | more, out=shared / "run", jobs=1)
    attacked = shared / "attacked"
    write_observed(attacked / "observed")
    save_truth([small_batch()], attacked / "private")
    attack_only(attacked / "observed", AttackRequest(attacks=[{"use": "linear"}], out=attacked / "run", jobs=1))
    for folder in (shared / "run", attacked / "run"):
        write_grid(folder)
        write_report(folder)
    make_keys(shared / "auditor.pem")
    write_pack(shared / "run", shared / "pack", PackRequest(key=shared / "auditor.pem"))
    return shared
