"""The server: any strategy, wrapped."""

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from recorded import CLASSES, NET, SHAPE, recorder
from seepage import build
from seepage.recorder.flower_hooks import AuditedStrategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Some rounds of averaging, of which every second is recorded for one client."""
    strategy = AuditedStrategy(FedAvg(fraction_evaluate=0.0), recorder("server"), every=2, clients=1)
    first = ArrayRecord(build(NET, SHAPE, CLASSES).state_dict())
    strategy.start(grid, first, num_rounds=int(context.run_config.get("rounds", 3)))
