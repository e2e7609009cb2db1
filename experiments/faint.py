r"""How much entries that a known defense shows to be small should count: `SMALL_ENTRY_WEIGHT` of the matching attacks.

python experiments/faint.py --seeds 100 101 102

Packaged digits (16 pixels), one at a time, of seeds that no other script scores, fresh convnets of width 8 with GELU;
the attacker knows of the defense. One row of results/defenses/faint.jsonl per digit, defense, attack and value.
"""

import argparse
import time
from dataclasses import replace

import torch
from common import keep

import seepage.federation.data
from seepage import Architecture, attack, build, record, score
from seepage.attacks.search.adaptive import DefenseAware
from seepage.attacks.search.distances import L2
from seepage.attacks.search.presets import idlg, inverting_gradients
from seepage.base.nn import generator
from seepage.federation.defenses import PartialAccess, Sparsify, sparsify

VALUES = (0.0, 0.01, 0.03, 0.1, 0.3)
ATTACKS = {
    "lbfgs, squared distances": replace(idlg(steps=30, line_search=True), distance=DefenseAware(L2())),
    "inverting_gradients": inverting_gradients(steps=300),
}
DEFENSES = {
    "sparsify, keep 0.1": Sparsify(keep=0.1),
    "partial_access, highest 0.2": PartialAccess(share=0.2, which="highest"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[100, 101, 102])
    parser.add_argument("--defenses", nargs="+", choices=DEFENSES, default=list(DEFENSES))
    parser.add_argument("--values", type=float, nargs="+", default=list(VALUES))
    arguments = parser.parse_args()
    data = seepage.federation.data.load("digits", size=16)
    for seed in arguments.seeds:
        chosen = torch.randperm(len(data.private), generator=generator(seed, "faint"))[:1]
        batch = data.batch(data.private[chosen])
        model = build(Architecture("convnet", {"width": 8, "activation": "gelu"}), (1, 16, 16), 10, seed=seed)
        for name in arguments.defenses:
            seen = record(model, batch, defense=DEFENSES[name], known=["defense"])
            for use, made in ATTACKS.items():
                for value in arguments.values:
                    sparsify.SMALL_ENTRY_WEIGHT = value
                    cpu = time.process_time()
                    found = attack(seen, made)
                    cpu = time.process_time() - cpu
                    facts = {"data": "digits", "defense": name, "seed": seed, "method": use, "faint": value}
                    row = {**facts, "psnr": score(found, batch).psnr, "attack": repr(made), "cpu_s": cpu}
                    keep("defenses/faint", f"{name}, {use}, {value:g}", "psnr", row)


if __name__ == "__main__":
    main()
