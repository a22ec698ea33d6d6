"""The schema of a recipe: its keys with types and defaults, and what is built from them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, GetCoreSchemaHandler, WithJsonSchema
from pydantic_core import CoreSchema, core_schema

from coalface.core.errors import RecipeError
from coalface.core.method import Method
from coalface.engine.faults import SimulatedFaults
from coalface.experiments.recipe.base import Section
from coalface.experiments.recipe.objects import ByName, Named, Settings
from coalface.experiments.recipe.partitions import OneIdentity, Partition
from coalface.experiments.recipe.scenarios import (
    Augmentation,
    Devices,
    Domains,
    Own,
    Partitioned,
    Private,
    PrivatePublic,
    Public,
    Scenario,
    Silos,
    Tested,
    Testing,
)
from coalface.experiments.recipe.sections import Engine, Evaluation, Model, Name, PartyName, Privacy, Validator
from coalface.methods import METHODS
from coalface.privacy.dp import PartyPrivacy
from coalface.privacy.secure import SecureSettings
from coalface.training.local_work import LocalTraining
from coalface.training.losses.base import CosineLoss
from coalface.training.losses.margins import CosFace
from coalface.training.losses.registry import LOSSES
from coalface.training.server_optimizers import SERVER_OPTIMIZERS, ServerOptimizer

SHARED = ("rounds", "local", "loss")
"""Keys at the top that are fields of methods."""
BY_NAME = ByName("methods", Method, registry=METHODS, shared=SHARED)
LOSS = Named("loss", CosineLoss, registry=LOSSES, usual="cosface")
OPTIMIZER = Named("server_optimizer", ServerOptimizer, registry=SERVER_OPTIMIZERS)
NAMED = ("model", "loss", "server_optimizer")
"""Sections that are written as their `name` alone where nothing else is set: `loss: arcface`."""
ADJUSTABLE = (
    "engine.min_reply_fraction",
    "engine.max_abandoned_rounds",
    "engine.max_update_norm",
    "engine.oversized",
    "engine.retries",
)
"""What a resume may change although the result depends on it; the run folder then records the change."""
FREE = (
    "data.root",
    "model.weights",
    "model.party",
    "evaluation.pictures",
    *(
        f"engine.{key}"
        for key in ("workers", "max_in_flight", "save_replies", "checkpoint_every", "keep_checkpoints", "trackers")
    ),
)
"""Keys that the result does not depend on: a resumed run may change them."""


@dataclass(frozen=True)
class Pretraining:
    """The run that makes the model which another starts from."""

    recipe: Recipe
    """In full: its own keys over what it takes from the other."""
    text: str
    """Its own keys alone, as they were given, in JSON."""

    def write(self) -> dict[str, Any]:
        """Its own keys, for `config.yaml` and the digest."""
        return dict(json.loads(self.text))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """It is made once the rest of the recipe is there."""
        return core_schema.is_instance_schema(
            cls, serialization=core_schema.plain_serializer_function_ser_schema(cls.write)
        )


class Recipe(Section):
    """One experiment."""

    name: Name = "run"
    """The run's name in reports, requests and ledgers; that of the file, unless it is given."""
    seed: int = 0
    """The seed of every random draw but those that evaluate runs of all seeds alike."""
    method: str = "fedavg"
    """How the model is trained: one of those that `coalface methods` lists."""
    rounds: int = Field(20, ge=1)
    """Rounds of training."""
    local: Annotated[LocalTraining, Settings("local", LocalTraining)] = LocalTraining()
    """The local work, the same for all methods."""
    loss: Annotated[CosineLoss, LOSS] = CosFace(scale=30.0, margin=0.35)
    """The loss over embeddings and class embeddings."""
    server_optimizer: Annotated[ServerOptimizer, OPTIMIZER] | None = None
    """What the server does with the mean change of the parties' backbones, such as `{name: yogi, lr: 0.01}`, for
    methods whose global backbone is that mean. None: it adds it."""
    methods: Annotated[Mapping[str, Method], BY_NAME] = Field({}, validate_default=True)
    """Settings of single methods, by name; they hold when that method is chosen."""
    data: Scenario = Silos()
    """Training images, and who holds them."""
    model: Model = Model()
    """The backbone."""
    evaluation: Evaluation = Evaluation()
    """What is evaluated, and when."""
    validators: dict[PartyName, Validator] = {}
    """Party name -> its pairs. They take part where the method has a step for validators."""
    fold_split: Literal["first", "second"] | None = None
    """Which half of the folds the validators with `validates` hold. The list is then evaluated on the folds of the
    other half alone, each with its threshold chosen on all nine others. A fair figure is the mean of both runs."""
    engine: Engine = Engine()
    """How the run is carried out on this machine."""
    privacy: Privacy = Privacy()
    """What protects the parties, and proves what was sent."""
    faults: Annotated[SimulatedFaults, Settings("faults", SimulatedFaults, short=True)] = SimulatedFaults()
    """Simulated faults, for tests and studies."""
    pretrain: Annotated[Pretraining | None, WithJsonSchema({})] = None
    """A recipe of its own, whose model this run starts from; kept by content in the cache.

    It takes from this recipe what both must share: `seed`, `data`, `model`, the pairs of `evaluation`, the `validators`
    (nobody who is evaluated, or whom a validator holds, may be trained on) and `engine` as far as it says how this
    machine computes. Everything else (`method`, `rounds`, `local`, `loss`, `methods`, `faults`) is what `pretrain`
    says, or the default of any recipe: a sweep over this run's learning rate or loss starts every cell from the same
    model. With `data.private` it trains on the public identities, all of their images; where parties have images of
    their own, on `data.public`; else on those of this run, less the images of `data.test`. A pooled method takes no
    partition, but where `data.party_augment` asks whose each image would be.
    """

    @classmethod
    def model_json_schema(cls, *args: Any, **keywords: Any) -> dict[str, Any]:
        """Every key with its type, default and description, for editors; below `pretrain` stand those of a recipe."""
        schema = super().model_json_schema(*args, **keywords)
        about = {"description": cls.model_fields["model"].description}
        schema["properties"]["model"] = {**about, "anyOf": [{"type": "string"}, schema["properties"]["model"]]}
        about = {key: value for key, value in schema["properties"]["pretrain"].items() if key != "type"}
        schema["properties"]["pretrain"] = {**about, "anyOf": [{"$ref": "#"}, {"type": "null"}]}
        schema["properties"]["teacher"] = {"type": "string", "description": "`methods.distill.teacher`, in short."}
        return schema

    def build_method(self) -> Method:
        """The method with its settings."""
        return self.methods.get(self.method) or BY_NAME.build(self.method, {}, vars(self))

    def resolved(self) -> dict[str, Any]:
        """Every key with its value, defaults included, as `config.yaml` holds it."""
        whole = self.model_dump(mode="json")
        whole["methods"] = {self.method: BY_NAME.settings(self.build_method())}
        return dict(json.loads(json.dumps(whole)))

    def essence(self) -> dict[str, Any]:
        """The resolved recipe without the keys that the result does not depend on (`FREE`)."""
        whole = self.resolved()
        for section, key in (path.split(".") for path in FREE):
            del whole[section][key]
        return _unplaced(whole)

    def digest(self) -> str:
        """Names what the result depends on: the recipe's essence without its name, and without what is not set.

        So a key that a later version adds, unset by default, changes no hash.
        """
        whole = _what_is_set({key: value for key, value in self.essence().items() if key != "name"})
        return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def starts_trained(self) -> bool:
        """Whether the network has been trained before the run."""
        return self.pretrain is not None or self.model.weights is not None

    @property
    def own(self) -> Own | None:
        """The data, where each party brings images of its own."""
        return self.data if isinstance(self.data, Own) else None

    @property
    def domains(self) -> Domains | None:
        """The data, where it is of two domains."""
        return self.data if isinstance(self.data, Domains) else None

    @property
    def private(self) -> Private | None:
        """Whom the parties hold, where all others are public."""
        return self.data.private if isinstance(self.data, PrivatePublic) else None

    @property
    def side(self) -> str | None:
        """Whose images are trained on, where there are sides."""
        if isinstance(self.data, Public):
            return "public"
        return self.data.side if isinstance(self.data, PrivatePublic | Domains) else None

    @property
    def partition(self) -> Partition | None:
        """Who holds which identities; None where draws do not say it."""
        if isinstance(self.data, Devices):
            return OneIdentity()
        return self.data.partition if isinstance(self.data, Partitioned) else None

    @property
    def test(self) -> Testing | None:
        """Which images of those who are trained on are kept to test them."""
        return self.data.test if isinstance(self.data, Tested) else None

    @property
    def unlabelled(self) -> float:
        """The share of the parties' images whose identity they do not know."""
        return (self.data.unlabelled or 0.0) if isinstance(self.data, Tested) else 0.0

    @property
    def dp(self) -> PartyPrivacy | None:
        """Differential privacy by party, if the recipe asks for it."""
        return self.privacy.dp

    @property
    def secure(self) -> SecureSettings | None:
        """Secure sums, if the recipe asks for them."""
        return self.privacy.secure

    @property
    def party_augment(self) -> dict[str, Augmentation]:
        """Parties whose images change in a way of their own."""
        return self.data.party_augment if isinstance(self.data, Tested) else {}

    def root(self) -> Path:
        """The data root. Raises RecipeError where none is given."""
        root = self.data.root or os.environ.get("COALFACE_DATA")
        if not root:
            raise RecipeError(
                "the recipe reads images below the data root; set the environment variable COALFACE_DATA to the "
                "folder that holds the data sets, or add data.root=FOLDER",
                where="data.root",
            )
        return Path(root)


def _what_is_set(tree: Any) -> Any:
    if not isinstance(tree, dict):
        return tree
    return {k: bare for k, v in tree.items() if (bare := _what_is_set(v)) not in (None, {}, [])}


def _unplaced(whole: dict[str, Any]) -> dict[str, Any]:
    """A resolved recipe without where parties' own images and the files of a pre-training lie."""
    if whole["data"]["scenario"] == "own":
        whole["data"]["party_data"] = {}
    for validator in whole["validators"].values():
        if validator["own"]:
            validator.update(source=None, kind="balanced", path=None, list=None)
    for tree in filter(None, (whole, whole["pretrain"])):  # files are named by their SHA-256
        distill = (tree.get("methods") or {}).get("distill")
        for section, key in ((tree.get("model"), "weights"), (tree.get("model"), "party"), (distill, "teacher")):
            if isinstance(section, dict):
                section.pop(key, None)
    return whole
