"""What encrypting an update costs, whole or in part (FedLeak, section 7 gives 702 s a client and 794 s the server).

    pip install tenseal phe
    python experiments/encryption.py

The update is one gradient of a ResNet-10 for three classes, as in the paper, whose figures are for another scheme,
secure aggregation by masks (Bonawitz et al. 2017). Here: CKKS of tenseal (Microsoft SEAL: ring of 8,192, 4,096 numbers
in a ciphertext, 40 bits of scale), and Paillier of phe (in plain Python, without gmpy2) with a key of 2,048 bits and 64
packed numbers in a ciphertext; one number in each would take 64 times as long. A client encrypts its update, the server
adds those of three, a client decrypts the sum. `share` is the part of the entries, the largest, that is encrypted at
all (section 7: 0.8 would save a fifth). CKKS is measured on the whole update; Paillier on 200 ciphertexts, whose time
is multiplied. Times are processor seconds of one core; what is not encrypted costs nothing here. One record per scheme
and share goes to results/federation/encryption.jsonl.
"""

import time
from collections.abc import Callable
from typing import Any

import torch
from common import Row, command
from torch import Tensor

from seepage import Architecture, Batch, build, record
from seepage.base.nn import generator
from seepage.papers.records import keep_measured

STUDY = "federation/encryption"
CLIENTS = 3
SLOTS = 4_096
PACKED = 64
SAMPLE = 200
"""Paillier ciphertexts that are measured."""
BITS = 24
"""Of a packed number, with room for the sum of the clients."""
PAPER = {"paper_client_s": 702.03, "paper_server_s": 793.79, "paper_training_s": 2.6}


def update() -> Tensor:
    """All entries of one gradient of a ResNet-10 for three classes, flat."""
    model = build(Architecture("resnet", {"depth": 10}), (3, 32, 32), 3, seed=0)
    batch = Batch(torch.rand((2, 3, 32, 32), generator=generator(0, "images")), torch.tensor([0, 2]))
    sent = record(model, batch)[0].update.tensors
    return torch.cat([tensor.flatten() for tensor in sent.values()])


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    start = time.process_time()
    return work(), time.process_time() - start


def ckks(values: Tensor) -> Row:
    """The whole update: seconds to encrypt, to add, to decrypt; bytes sent; the largest error of the sum."""
    import tenseal

    context = tenseal.context(tenseal.SCHEME_TYPE.CKKS, 8_192, coeff_mod_bit_sizes=[60, 40, 40, 60])
    context.global_scale = 2**40
    parts = [part.tolist() for part in values.double().split(SLOTS)]
    sent, client = timed(lambda: [tenseal.ckks_vector(context, part).serialize() for part in parts])

    def added() -> list[Any]:
        sums = []
        for part in sent:
            # Each client's part arrives as bytes; here all send the same.
            total = tenseal.ckks_vector_from(context, part)
            for _ in range(CLIENTS - 1):
                total += tenseal.ckks_vector_from(context, part)
            sums.append(total)
        return sums

    sums, server = timed(added)
    plain, opened = timed(lambda: [total.decrypt() for total in sums])
    found = torch.tensor([number for part in plain for number in part]) / CLIENTS
    error = float((found - values.double()).abs().max())
    return {"client_s": client + opened, "server_s": server, "mebibytes": sum(map(len, sent)) / 2**20, "error": error}


def paillier(values: Tensor) -> Row:
    """From a sample of ciphertexts, for all of them."""
    from phe import paillier as scheme

    public, private = scheme.generate_paillier_keypair(n_length=2048)
    ciphertexts = -(-len(values) // PACKED)
    scale = (2 ** (BITS - 4) - 1) / float(values.abs().max())
    whole = (values[: SAMPLE * PACKED].double() * scale).round().long() + 2 ** (BITS - 4)  # from 0 up
    numbers = [sum(v << (BITS * i) for i, v in enumerate(part.tolist())) for part in whole.split(PACKED)]
    sent, client = timed(lambda: [public.raw_encrypt(number) for number in numbers])
    square = public.nsquare

    def added() -> list[int]:
        sums = []
        for part in sent:
            total = part
            for _ in range(CLIENTS - 1):
                total = total * part % square  # the product of ciphertexts is the sum of plaintexts
            sums.append(total)
        return sums

    sums, server = timed(added)
    opened, back = timed(lambda: [private.raw_decrypt(total) for total in sums])
    assert opened == [CLIENTS * number for number in numbers]
    factor = ciphertexts / len(numbers)
    bytes_sent = ciphertexts * public.nsquare.bit_length() / 8
    return {"client_s": (client + back) * factor, "server_s": server * factor, "mebibytes": bytes_sent / 2**20}


def main(*, shares: tuple[float, ...] = (1.0, 0.8, 0.2)) -> None:
    torch.set_num_threads(1)
    values = update()
    schemes: dict[str, Callable[[Tensor], Row]] = {"CKKS": ckks, f"Paillier, {PACKED} in one": paillier}
    for name, measure in schemes.items():
        for share in shares:
            chosen = values[values.abs().topk(round(share * len(values))).indices]
            row: Row = {"scheme": name, "share": share, "entries": len(chosen), "clients": CLIENTS}
            row |= {**PAPER, **measure(chosen)}
            client = row.pop("client_s")
            keep_measured(STUDY, f"{name}, share {share:g}", "client_s", client, **row)


if __name__ == "__main__":
    command(main)
