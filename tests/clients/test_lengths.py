"""How long captured texts were: read off the table of places, else assumed; of rows of codes it is asked for."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from seepage.audit.capture import Capture
from seepage.audit.captured_network import DEFAULT_LENGTH
from seepage.audit.checking import Look, check_capture
from seepage.errors import SeepageError
from seepage.federation.types import Architecture

HERE, VOCABULARY, PLACES = __name__, 200, 24


class Placed(nn.Module):
    """A table of places, of rows `first` on, as a layer or as a parameter with a 1 before."""

    def __init__(self, first: int = 0, *, own: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, 8)
        self.places = nn.Parameter(torch.randn(1, PLACES, 8)) if own else nn.Embedding(PLACES, 8)
        self.first, self.own, self.head = first, own, nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        at = torch.arange(tokens.shape[1]) + self.first
        places = self.places[:, at] if self.own else self.places(at)  # type: ignore[operator,index]
        return self.head(torch.tanh(self.words(tokens) + places).mean(1))


class Recurrent(nn.Module):
    """Takes texts of any length."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.read, self.head = nn.Embedding(VOCABULARY, 8), nn.GRU(8, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.read(self.words(tokens))[0][:, -1])


class Flat(nn.Module):
    """Reads twelve tokens side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.first, self.head = nn.Embedding(VOCABULARY, 8), nn.Linear(96, 20), nn.Linear(20, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.first(self.words(tokens).flatten(1))))


class Columns(nn.Module):
    """Two columns of codes, of which each has a table, side by side or multiplied."""

    def __init__(self, *, product: bool) -> None:
        super().__init__()
        self.user, self.item, self.product = nn.Embedding(VOCABULARY, 8), nn.Embedding(30, 8), product
        self.head = nn.Linear(8 if product else 16, 3)

    def forward(self, codes: Tensor) -> Tensor:
        user, item = self.user(codes[:, 0]), self.item(codes[:, 1])
        return self.head(user * item if self.product else torch.cat([user, item], 1))


def placed() -> nn.Module:
    return Placed()


def offset() -> nn.Module:
    return Placed(2)


def parameter() -> nn.Module:
    return Placed(own=True)


def recurrent() -> nn.Module:
    return Recurrent()


def flat() -> nn.Module:
    return Flat()


def columns() -> nn.Module:
    return Columns(product=False)


def products() -> nn.Module:
    return Columns(product=True)


def shape(folder: Path, make: str, tokens: Tensor, rule: str = "sgd") -> tuple[str, str]:
    """Value and origin of the shape that is told of one step on these tokens."""
    torch.manual_seed(0)
    model = globals()[make]()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    make_rule = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[rule]
    optimizer = make_rule(model.parameters(), lr=1e-2)
    nn.functional.cross_entropy(model(tokens), torch.arange(len(tokens)) % 3).backward()
    optimizer.step()
    torch.save(before, folder / "before.pt")
    torch.save(model.state_dict(), folder / "after.pt")
    capture = Capture(
        before=folder / "before.pt", after=folder / "after.pt", architecture=Architecture(f"{HERE}:{make}")
    )
    found = {one.name: one for one in check_capture(capture, Look()).cases[0].facts}["input shape"]
    return found.value, found.origin


@pytest.mark.parametrize("rule", ["sgd", "adamw"])
@pytest.mark.parametrize("make", ["placed", "offset", "parameter"])
@pytest.mark.parametrize("length", [5, PLACES - 2, PLACES])
def test_the_length_is_that_of_the_places_that_moved(tmp_path: Path, make: str, rule: str, length: int) -> None:
    length = min(length, PLACES - 2 * (make == "offset"))
    tokens = torch.randint(VOCABULARY, (3, length), generator=torch.Generator().manual_seed(length))
    value, origin = shape(tmp_path, make, tokens, rule)
    assert (value.split(",")[0], origin) == (str(length), "inferred")


def test_without_a_table_of_places_it_is_assumed(tmp_path: Path) -> None:
    tokens = torch.randint(VOCABULARY, (3, 9), generator=torch.Generator().manual_seed(0))
    value, origin = shape(tmp_path, "recurrent", tokens)
    assert (value.split()[1], origin) == (str(DEFAULT_LENGTH), "assumed")


@pytest.mark.parametrize(("make", "length"), [("flat", 12), ("columns", 2)])
def test_what_a_layer_reads_side_by_side_is_counted(tmp_path: Path, make: str, length: int) -> None:
    tokens = torch.randint(30, (3, length), generator=torch.Generator().manual_seed(0))
    value, origin = shape(tmp_path, make, tokens)
    assert (value.split(",")[0], origin) == (str(length), "inferred")


def test_of_a_row_of_codes_it_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(SeepageError, match="--shape LENGTH"):
        shape(tmp_path, "products", torch.tensor([[3, 4], [5, 6]]))
