"""Accountants of other frameworks than Opacus, read into a ledger: Flower's of Renyi privacy, NVFlare's of its SVT.

Each entry names who states it. Neither framework needs to be installed to read what it handed over.
"""

import math
from collections.abc import Mapping
from typing import Any

from seepage.errors import SeepageError
from seepage.measure.privacy.accounting import caveats
from seepage.measure.privacy.ledger import LedgerEntry

FLOWER = "Flower"
SVT = "NVFlare SVTPrivacy"
SVT_META = "svt_privacy_accountant"
"""Where NVFlare's filter leaves its sum, in the meta data of the update that it changed."""


def flower_entry(accountant: Any, *, clip: float | None = None) -> LedgerEntry:
    """What Flower's `RdpAccountant` states of all releases so far; the unit is a client's whole update of a round.

    Its strategies for fixed clipping hold it as `accountant`, and noise the average of the sampled clients' updates on
    the server: the epsilon is towards those who see the average, and none towards the server.

    Args:
        accountant: Flower's accountant.
        clip: The norm that updates are clipped to, which it does not know.

    Raises:
        SeepageError: For something else.
    """
    try:
        spent, state = accountant.get_privacy_spent(), accountant.state_dict()
        last = state["compositions"][-1]["event"] if state["compositions"] else None
        amount, delta, releases = float(spent.epsilon), float(spent.delta), int(spent.num_releases)
        sampling = str(state["config"]["sampling_method"])
        noise = None if last is None else float(last["noise_multiplier"])
        rate = None if last is None else float(last["sample_size"]) / float(last["population_size"])
    except (AttributeError, KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise SeepageError(
            f"{type(accountant).__name__} is no accountant of Flower's as version 1.41 has it ({error}); give the "
            "strategy's own, or update Flower"
        ) from error
    why = [] if math.isfinite(amount) else ["Flower states no finite epsilon"]
    why.append("it holds towards those who see the average, and not towards the server, which adds the noise")
    if sampling != "no-amplification":
        why.append(f"it takes clients to be drawn by chance ({sampling}), unknown to who attacks")
    return LedgerEntry(
        epsilon=amount if math.isfinite(amount) else None,
        delta=delta,
        accountant="rdp",
        noise=noise,
        clip=clip,
        sample_rate=rate,
        steps=releases,
        caveats=(*caveats(epsilon=amount), *why),
        stated_by=FLOWER,
        unit="update",
    )


def svt_entry(meta: Mapping[str, Any], *, gamma: float | None = None) -> LedgerEntry | None:
    """What NVFlare's `SVTPrivacy` states of all its calls so far; None for an update that it did not change.

    Args:
        meta: The meta data of the update behind the filter (`dxo.meta`).
        gamma: The bound that each entry is cut to.

    Raises:
        SeepageError: For other meta data under its name.
    """
    found = meta.get(SVT_META)
    if found is None:
        return None
    try:
        amount, delta, calls = float(found["epsilon_total"]), float(found["delta"]), int(found["calls"])
        method = str(found["accountant"])
    except (KeyError, TypeError, ValueError) as error:
        raise SeepageError(
            f"{SVT_META!r} is not as NVFlare 2.9 writes it ({error}); update seepage or NVFlare"
        ) from error
    finite = math.isfinite(amount) and amount >= 0
    why = caveats(epsilon=amount) if finite else ["NVFlare states no finite epsilon"]
    if "note" in found:
        why.append("parameters that are single numbers leave without noise, and are not counted")
    return LedgerEntry(
        epsilon=amount if finite else None,
        delta=delta,
        accountant=method,
        noise=None,
        clip=gamma,
        sample_rate=None,
        steps=calls,
        caveats=tuple(why),
        stated_by=SVT,
        unit="update",
    )
