"""The sections of a recipe: their keys, types and defaults."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from coalface.core.compression import Updates
from coalface.core.names import check_name, check_party
from coalface.data import source
from coalface.engine.robust.aggregators import AGGREGATORS, Aggregator
from coalface.evaluation.metrics.pair_figures import PAIR_FIGURES
from coalface.experiments.recipe.base import Kinds, PluginSection, Section
from coalface.experiments.recipe.objects import Named, Settings
from coalface.models import BACKBONES, BatchNormPolicy
from coalface.models.pretrained.input import IMAGENET, InputConvention
from coalface.models.speed import Arithmetic
from coalface.privacy.dp import PartyPrivacy
from coalface.privacy.secure import SecureSettings
from coalface.privacy.templates import TemplateNoise

Name = Annotated[str, AfterValidator(check_name)]
"""What becomes a file's or a folder's name."""
PartyName = Annotated[str, AfterValidator(check_party)]
"""What a party is called, or what parties are called after."""


class Source(PluginSection):
    """Where face images come from."""

    @property
    def is_synthetic(self) -> bool:
        """Whether its faces are drawn, so that pictures show nobody."""
        return False


class Reader(Source, ABC):
    """A kind of source of a plug-in: its keys, and how its images are read."""

    @abstractmethod
    def open(self, *, size: int, grey: bool) -> source.Source:
        """The images, listed and not yet decoded. Raises DataError for what is not as it should be."""


class Synthetic(Source):
    """Drawn faces, for demonstrations and tests."""

    kind: Literal["synthetic"] = "synthetic"
    identities: int = 400
    """How many people."""
    images: int = 20
    """Images of each."""
    first: int = 0
    """The number of the first person."""
    seed: int = 0
    """People of another seed are other people."""
    domains: tuple[PartyName, ...] = ("studio",)
    """Person i is seen in domain i modulo their number."""

    @property
    def is_synthetic(self) -> bool:
        return True


class OnDisk(Source):
    """Images of a data set on the disk."""

    path: str
    """Below the data root unless absolute."""


class Folder(OnDisk):
    """Identity folders, or a data set in one of the field's layouts."""

    kind: Literal["folder"] = "folder"
    part: str | None = None
    """A part of a data set that has several, such as `test` of VGGFace2."""


class Records(OnDisk):
    """insightface's records: a folder with `train.rec`, or the file."""

    kind: Literal["rec"] = "rec"


class Pack(OnDisk):
    """Decoded images, as `coalface data pack` writes them."""

    kind: Literal["pack"] = "pack"


PART = Kinds(Synthetic, Folder, Records, group="coalface.readers", base=Reader)


class JoinedParts(Source):
    """Several named data sets as one."""

    kind: Literal["joined"] = "joined"
    parts: dict[PartyName, Annotated[Source, PART]] = Field(min_length=1)
    """Their names and sources. Identity `s1` of part `orl` is called `orl/s1`."""

    @property
    def is_synthetic(self) -> bool:
        return all(part.is_synthetic for part in self.parts.values())


SOURCES = Kinds(Synthetic, Folder, Records, Pack, JoinedParts, group="coalface.readers", base=Reader)
"""Every kind of source."""
AnyFaces = Annotated[Source, SOURCES]
OneSource = Annotated[Source, Kinds(Synthetic, Folder, Records, Pack, group="coalface.readers", base=Reader)]
"""Images that are not joined, as those of a list or of one party."""


@dataclass(frozen=True, eq=False)
class LoadedFaces:
    """Face images of one side and colour; a scenario takes them in place of its `faces`, `size` and `grey`."""

    source: Source
    """What `data.faces` of a recipe says."""
    size: int
    """Side of the images in pixels."""
    grey: bool


DRAWN = ("balanced", "across")
"""Kinds of lists that are drawn among the identities held out, or those of a source."""
WITH_IMAGES = ("bin", "layout")
"""Kinds of pairs that bring their images along."""


class Pairs(Section):
    """A list of pairs of images."""

    kind: Literal["lfw", "all-pairs", "balanced", "across", "bin", "layout"] = "balanced"
    """Where the pairs come from; `balanced`: they are drawn among the identities held out. `across`: also, so many of
    each identity, between two `folders`, as CFP's protocol has them between frontal and profile images."""
    path: str | None = None
    """`lfw`: the list. `all-pairs`: a list whose identities are taken. `bin`: insightface's pack, images and pairs.
    `layout`: the folder of a data set that has lists of its own, such as CFP, CALFW or RFW."""
    list: str | None = None
    """`layout`: which of its lists, where it has several."""
    source: OneSource | None = None
    """Images other than the training source's, for example another domain."""
    part: str | None = None
    """Of a joined training source, the part to evaluate on: its held-out identities, or its images by file name."""
    pairs: int | None = 3000
    """`balanced`: genuine pairs, and as many impostor pairs, over the identities held out. None: as many as the images
    make, up to 3,000."""
    most_images: int | None = Field(None, ge=2)
    """`balanced`: at most so many images of an identity, its first; else a few with hundreds make most of the pairs."""
    folders: tuple[str, str] | None = None
    """`across`: the folder that the first image of a pair lies in, and that of the second; they may be the same."""
    each: int | None = Field(None, ge=1)
    """`across`: genuine pairs of an identity, and as many impostor pairs with others of its fold. None: 7."""


class EvaluationPairs(Pairs):
    """A list of pairs to evaluate on."""

    domain: Literal["source", "target"] | None = None
    """Of two domains, whose people the list shows: reports then have a table by domain, with the gap between them."""
    rank1: Literal["one-query", "one-gallery"] | None = None
    """Also look the list's people up: one image of each is the query and all others the gallery, or the other way
    round, which asks more often. Drawn by a fixed seed."""


class Validator(Pairs):
    """A party of its own that holds pairs for Federated Validation; only the scores of its pairs leave it."""

    identities: int | None = Field(None, ge=2)
    """`balanced` without a source: so many trainable identities are set aside for it, drawn by a fixed seed. No trainer
    holds them, whatever the method."""
    validates: str | None = None
    """It holds the half of this list of `evaluation.pairs` that `fold_split` says; the run is evaluated on the rest."""
    own: Literal[True] | None = None
    """It brings images of its own, and pairs; without a list, `pairs` of each kind are drawn among its images."""


Rate = Annotated[float, Field(gt=0, lt=1)]


class Personalised(Section):
    """How every client's own model serves the client's own identities: see
    `coalface.evaluation.metrics.personalised`.
    """

    fars: tuple[Rate, ...] = (1e-6, 1e-5)
    """1:1."""
    fpirs: tuple[Rate, ...] = (1e-5, 1e-4)
    """1:N."""
    one_to_one: Literal["paper", "official"] = "paper"
    """How 1:1 is evaluated: as the paper says, or as its authors' code does."""
    one_to_many: Literal["standard", "legacy", "official"] = "standard"
    """How 1:N is evaluated: as the field does; by the threshold and the match of the authors' code; as that code does
    in all, whose templates keep the length of the mean."""


FigureName = Annotated[str, BeforeValidator(lambda given: PAIR_FIGURES.name_of(given) if callable(given) else given)]
"""A figure of a plug-in; in Python its class will do."""


class Evaluation(Section):
    """What is evaluated, and when."""

    every: int = 0
    """Rounds between two evaluations during the run; 0: the end only."""
    flip: bool = False
    """Add the embedding of the mirrored image."""
    fars: tuple[Rate, ...] = ()
    """False accept rates at which the true accept rate is given; none: 0.01 and 0.001."""
    figures: tuple[FigureName, ...] = ()
    """Figures of plug-ins beside those of the field, on every list: each a name, or `package.module:Class`."""
    parties: int = Field(16, ge=1)
    """Where each party has a model of its own: so many are evaluated, the first by name; the figure is their mean."""
    pictures: bool | None = None
    """Keep pictures of the hardest pairs in the run's folder, and show them on its page. None: where the faces are
    synthetic. `true` shows people: set it where you may."""
    pairs: dict[Name, EvaluationPairs] = {}
    """Name -> a list of pairs to verify."""
    personalised: Personalised | None = None
    """Also evaluate, on the images of `data.test`, how well its own and everybody's model serve each client."""


BackboneName = Annotated[str, BeforeValidator(lambda given: BACKBONES.name_of(given) if callable(given) else given)]
"""In Python also an `nn.Module`, or what makes one of (size, channels, embedding_size)."""


class Model(Section):
    """The backbone."""

    name: BackboneName = "cnn-small"
    """The network: one of those that `coalface models` lists."""
    embedding_size: int | None = None
    """Numbers of an embedding; None: as many as the network usually has."""
    batchnorm: Literal["average", "local", "parameters-only", "frozen"] = "average"
    """What becomes of BatchNorm: all is averaged, all stays at the party, or running statistics alone stay; or they are
    frozen as the model to start from has them, so that no batch's statistics are taken, or leave."""
    weights: str | None = None
    """Weights to start from: `.safetensors`, `.pt` or `.pth`, a run, or a folder with a model, matched to the network
    as `docs/models.md` says. None: drawn by the seed."""
    party: PartyName | None = None
    """The party whose own model the weights are, where `weights` is a run in which each has one."""
    sha256: str | None = None
    """Of the file of weights; filled in when the run begins."""
    input: Annotated[
        Annotated[InputConvention, Settings("model.input", InputConvention)] | None,
        BeforeValidator(lambda value: IMAGENET if value == "imagenet" else value),
    ] = None
    """What the network expects of its input; `imagenet` for torchvision's mean and std, or that of the weights, where
    they are a run's or a model folder's. None: pixels in [−1, 1], as every backbone trained from the start."""

    @property
    def policy(self) -> BatchNormPolicy:
        """What is sent of BatchNorm; frozen statistics are, and are the same everywhere."""
        return "average" if self.batchnorm == "frozen" else self.batchnorm


class Privacy(Section):
    """What protects the parties, and proves what was sent."""

    dp: Annotated[PartyPrivacy, Settings("privacy.dp", PartyPrivacy)] | None = None
    """Differential privacy by party: each update is clipped, and the server adds noise to their sum; with `secure` the
    parties do both. None: neither."""
    secure: Annotated[SecureSettings, Settings("privacy.secure", SecureSettings, switch=True)] | None = None
    """Secure sums: the server learns the sum of the parties' replies, and no part of it. `true` for the usual settings.
    None or `false`: it is sent each party's reply."""
    templates: Annotated[TemplateNoise, Settings("privacy.templates", TemplateNoise)] | None = None
    """Noise on the sphere for class embeddings that leave a party singly, drawn where they are made. None: without."""
    countersign: Literal[True] | None = None
    """After each round the server signs which replies it has accepted, and one of their parties signs that: nobody can
    then write ledgers and receipts anew without both keys. `coalface ledger verify` checks it. Not with `dp`,
    as it tells a party of all replies."""


AGGREGATOR = Named("engine.aggregator", Aggregator, registry=AGGREGATORS)


class Engine(Section):
    """How the run is carried out on this machine."""

    workers: int = Field(1, ge=1)
    """Processes that play the parties; the result does not depend on it."""
    threads: Literal["auto"] | Annotated[int, Field(ge=1)] = 1
    """Threads of each step, part of the numerics. One is best where cores are shared or the backbone is small. `auto`:
    as many as pay, of the machine's cores over `workers`; it is measured when the run begins, and kept."""
    max_in_flight: int | None = Field(None, ge=1)
    """Parties under way or waiting to be summed; None: four for each worker."""
    sum_block: int = Field(16, ge=1)
    """Parties whose replies are summed before the next so many begin, in their order. Part of the numerics."""
    processes_per_party: dict[PartyName, Annotated[int, Field(ge=1)]] = {}
    """Party name -> processes that play it: each holds a block of its class embeddings, and embeds a part of a batch.
    Silos, validators and `pooled`, the one party of centralised training, whatever the method: those that it has not
    are not used. Part of the numerics; `threads` are of each process. On `cuda` each has a GPU of its own."""
    client_batch: Literal["auto"] | Annotated[int, Field(ge=0)] | None = None
    """Images of several parties that are computed as one batch, where the method has a form for that. `auto`: 256 (of
    images above 64×64 on a CPU, 32) where a party takes one SGD step; where it takes several, as many as are fastest,
    measured when the run begins, and kept; 0 where the method or its settings do not allow it. None as 0: party by
    party. Part of the numerics."""
    update_dtype: Updates | None = None
    """The type in which float32 tensors of a reply are sent, as differences to what the party was sent where it is the
    same field: see `coalface.core.compression`. None: as they are. Part of the numerics."""
    device: str = "cpu"
    """Where training runs: `cpu`, `cuda` or `cuda:N`."""
    autocast: Literal["bfloat16", "auto"] | None = None
    """The type that matrix products and convolutions are computed in; None: float32. `auto`: bfloat16 where it is
    faster, measured when the run begins, and kept. Part of the numerics."""
    channels_last: Literal["auto"] | bool = False
    """Keep images with the channels last in memory. `auto`: where that is faster, measured when the run begins, and
    kept. Part of the numerics."""
    flush_denormals: bool = True
    """Take numbers too small for float32's full precision for 0, which is faster. Part of the numerics."""
    save_replies: Literal["auto"] | bool = "auto"
    """Keep each reply at the party, so that the same request again gets the same reply without training. `auto`: those
    that took half a second or more to make; a resume makes the others again, with the same bytes. A node of a real
    federation keeps them all."""
    checkpoint_every: int = Field(1, ge=1)
    """Rounds between two checkpoints."""
    keep_checkpoints: int = Field(2, ge=1)
    """How many of the last checkpoints are kept."""
    min_reply_fraction: float = Field(0.5, ge=0, le=1)
    """The share of the parties asked whose replies must count, after `retries`; with fewer the round is abandoned. With
    draws under `privacy.dp` a round counts with any number, and another share than the default is refused."""
    max_abandoned_rounds: int = Field(5, ge=0)
    """The run ends where so many rounds in a row are abandoned."""
    retries: int | None = Field(None, ge=0)
    """How often a party is asked again that was not reached, or whose reply was lost, late or torn. None: once.
    One that is silent for `step-seconds` is waited for as long again."""
    max_update_norm: float | None = Field(None, ge=0)
    """A reply whose update is so many times as large as the median reply's, both by the root of a party's images where
    these say how many steps it takes, does not count. None: 30, and 5 where parties bring their own images
    (`data.scenario: own`); 0: no bound."""
    max_share: float | None = Field(None, gt=0, le=1)
    """The most that one party's images can count of a mean by images, as a share of those of all who answer. None:
    0.5 where three or more are asked and each says its number itself (`data.scenario: own`), else no bound."""
    aggregator: Annotated[Aggregator, AGGREGATOR] | None = None
    """A rule that survives parties that lie, in place of every weighted mean that the method asks for, such as
    `{name: multi-krum, byzantine: 0.2}`; it needs the reply of each party by itself: see `docs/robust-means.md`.
    None: weighted means."""
    oversized: Literal["refuse", "clip"] | None = None
    """What becomes of such a reply: None as `refuse`, it does not count; `clip`: it is scaled down to the bound."""
    on_error: Literal["stop", "exclude"] = "stop"
    """What a step that fails does: it ends the run, or its party is left out."""
    trackers: Annotated[
        tuple[Literal["tensorboard", "mlflow", "wandb"], ...],
        BeforeValidator(lambda value: (value,) if isinstance(value, str) else value),
    ] = ()
    """Where rounds and figures are kept as well: `tensorboard` (in the run's folder), `mlflow`, `wandb` (offline, in
    the run's folder). Their own environment variables, such as `MLFLOW_TRACKING_URI` and `WANDB_MODE`, are heeded."""

    @property
    def to_measure(self) -> tuple[str, ...]:
        """What is `auto`, and a number or a name once a run has begun."""
        return tuple(key for key in ("threads", "autocast", "channels_last") if getattr(self, key) == "auto")

    @property
    def arithmetic(self) -> Arithmetic:
        """How steps compute; what is still to be measured is as by default."""
        usual = {key: Engine.model_fields[key].default for key in self.to_measure}
        return Arithmetic(**({key: getattr(self, key) for key in Arithmetic.__annotations__} | usual))
