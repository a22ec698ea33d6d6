"""Every reader and decoder that is fuzzed, by name."""

from __future__ import annotations

from reader import Reader
from readers_of_data import DATA
from readers_of_messages import MESSAGES
from readers_of_models import MODELS
from readers_of_nodes import NODE_READERS
from readers_of_runs import RUNS

READERS: dict[str, Reader] = MESSAGES | NODE_READERS | RUNS | MODELS | DATA
