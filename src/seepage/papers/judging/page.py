"""`judge.html`: shows pairs of pictures one at a time; the judge does not know which attack or control they show.

RUN/private/judge-ID.json    what each pair is; the page names pairs by number only
"""

import hashlib
import json
from base64 import b64encode
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from seepage.base.lock import held
from seepage.base.manifest import renew
from seepage.base.storage import OWNER_ONLY, SCHEMA, make_private, write_whole
from seepage.base.words import for_page
from seepage.errors import SeepageError
from seepage.measure.metrics.features import feature_network, features_missing
from seepage.papers.judging.machine import machine_answers, write_machine_answers
from seepage.papers.judging.pairs import ShownPair, choose_pairs, open_albums, returned
from seepage.report.pictures import Pictures, data_uri
from seepage.report.run import open_run

LARGEST_SIDE = 256
"""Largest side of a picture in pixels; larger ones are reduced to limit the size of the page."""


@dataclass(frozen=True)
class JudgePage:
    """A page that was written.

    Attributes:
        path: The page.
        id: Its name, 12 hexadecimal digits; the same run, choice and seed give the same one.
        pairs: Number of pairs on the page.
        guesses: Number of these that show an attack's guess; the others are controls.
        key: Path of the file with the key, which states what each pair shows.
    """

    path: Path
    id: str
    pairs: int
    guesses: int
    key: Path


def write_judge_page(
    folder: Path,
    path: Path,
    *,
    case: str | None = None,
    attack: str | None = None,
    pairs: int = 60,
    seed: int = 0,
    machine: Path | None = None,
    features: str | None = None,
) -> JudgePage:
    """Write a page for judging guesses, and its key into the run's `private/`, both readable by their owner only.

    The page holds private pictures, needs no network and sends nothing: a judge saves the answers as a file.

    Args:
        folder: A finished run folder with its private pictures.
        path: The page to write.
        case: Only this case; None: all with pictures.
        attack: Only this attack; None: all with pictures.
        pairs: Largest number of pairs, at least 20; at least three tenths of them are controls.
        seed: Draws the pairs and their order.
        machine: File for the answers of a machine judge (`judging.machine`); None: only people judge.
        features: Its weights of torchvision's `squeezenet1_1`; None: torchvision's own, and without any structural
            similarity.

    Raises:
        SeepageError: Where the run has no such case or attack, no pictures to compare, or too few for the controls, and
            while another process writes to it.
    """
    albums = open_albums(open_run(folder), case, attack)
    shown = {f"p{i:03d}": pair for i, pair in enumerate(choose_pairs(albums, attack=attack, pairs=pairs, seed=seed), 1)}
    pictures = [
        {"id": name, "left": data_uri(pair.left, LARGEST_SIDE), "right": data_uri(pair.right, LARGEST_SIDE)}
        for name, pair in shown.items()
    ]
    key = {
        "schema": SCHEMA,
        "seed": seed,
        "pairs": {name: pair.subject.model_dump() for name, pair in shown.items()},
        "groups": _groups(albums, shown),
    }
    digest = hashlib.sha256(json.dumps([key, pictures]).encode()).hexdigest()[:12]
    place = key_path(folder, digest)
    said = None if machine is None else machine_answers(shown, _private(albums), _network(features))
    with held(folder):
        make_private(place.parent, tighten=True)
        write_whole(place, json.dumps({**key, "page": digest}, indent=2) + "\n", mode=OWNER_ONLY)
        write_whole(path, _render(digest, pictures), mode=OWNER_ONLY)
        renew(folder, [place.relative_to(folder).as_posix()])
    if machine is not None and said is not None:
        write_machine_answers(machine, digest, *said)
    guesses = sum(pair.subject.kind == "guess" for pair in shown.values())
    return JudgePage(path, digest, len(shown), guesses, place)


def key_path(folder: Path, page: str) -> Path:
    """Path of a page's key."""
    return folder / "private" / f"judge-{page}.json"


def _private(albums: dict[str, Pictures]) -> list[Tensor]:
    return [picture for album in albums.values() for inputs in (album.truth or {}).values() for picture in inputs]


def _network(features: str | None) -> nn.Module | None:
    missing = features_missing(features)
    if missing is not None and features is not None:
        raise SeepageError(missing)
    return None if missing is not None else feature_network(features)


def _groups(albums: dict[str, Pictures], shown: dict[str, ShownPair]) -> list[dict[str, Any]]:
    """How many examples each attack on the page returned; the others count as failures."""
    subjects = [pair.subject for pair in shown.values() if pair.subject.kind == "guess"]
    names = sorted({(subject.case, subject.attack) for subject in subjects})
    return [
        {
            "case": case,
            "attack": attack,
            "returned": len(returned(albums[case], attack)),
            "examples": len(albums[case].places),
        }
        for case, attack in names
    ]


def _render(page: str, pictures: list[dict[str, str]]) -> str:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("seepage", "papers/judging"),
        autoescape=True,
        finalize=for_page,
        undefined=jinja2.StrictUndefined,
    )
    script = Path(__file__).with_name("judge.js").read_text(encoding="utf-8")
    # The page's content security policy allows only the script with this digest.
    digest = b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template("judge.html.j2").render(
        page=page, pairs=pictures, schema=SCHEMA, script=script, digest=digest
    )
