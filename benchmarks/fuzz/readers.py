"""All readers by name."""

from base import Reader
from of_data import Archive, Images, Npz, Table, Text
from of_folders import Baseline, Pack, Printed, SettingsFile
from of_observed import Captured, FactsOfRounds, Ledger, Privacy, Recorded, Rounds, State, Tensors
from of_runs import Judgements, Private, Records, Run, Scored
from of_words import Recipe, Settings, TomlBytes, Words

ALL: tuple[type[Reader], ...] = (
    State,
    Tensors,
    FactsOfRounds,
    Rounds,
    Captured,
    Privacy,
    Ledger,
    Recorded,
    Private,
    Run,
    Scored,
    Judgements,
    Records,
    Recipe,
    TomlBytes,
    Settings,
    Words,
    Archive,
    Npz,
    Images,
    Table,
    Text,
    SettingsFile,
    Baseline,
    Pack,
    Printed,
)

READERS = {reader.name: reader for reader in ALL}

__all__ = ["READERS", "Reader"]
