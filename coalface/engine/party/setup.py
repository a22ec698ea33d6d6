"""The setup of a process that plays parties: their data, and the method, arithmetic and seed of the run."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from coalface.core.method import Backbone, Method, Party, generator
from coalface.core.names import check_name
from coalface.data.faceset import FaceSet
from coalface.engine.party.context import ExecutorContext, SaveReplies
from coalface.engine.party.request import Request
from coalface.engine.run_state import Numerics
from coalface.engine.transport import Member
from coalface.privacy.dp import PartyPrivacy
from coalface.privacy.noise import seeded_secret
from coalface.privacy.secure import SecureSettings
from coalface.privacy.templates import TemplateNoise, TemplateRelease
from coalface.training.joint.public_images import PublicImages

if TYPE_CHECKING:
    from coalface.engine.party.sums import PartySums

ANSWERS, OPENED = "answers", "answers/every-run"
"""The folders of what each party has answered in secure sums of a run, and of any."""


@dataclass(frozen=True)
class FederatedData:
    """Who takes part, with what data, network and arithmetic. A process builds its own."""

    data: Mapping[str, FaceSet]
    """Each party's own images, by name."""
    backbone: Backbone
    compute: Any
    """`coalface.training.compute.Compute`."""
    roles: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """The role of each party; `trainer` where it is not named."""
    public: FaceSet | None = None
    """Images that the server and every party hold."""
    server_public: FaceSet | None = None
    """Images that the server alone holds."""
    augment: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Parties whose images are augmented in a way of their own: `coalface.data.augment.Augment`."""
    unlabelled: Mapping[str, FaceSet] = dataclasses.field(default_factory=dict)
    """Party -> images of its own whose identities it does not know, and `data` has not."""
    pairs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """The pairs of each validator, of the images that it holds: `coalface.data.pairs.PairList`."""
    calibration_data: Mapping[str, FaceSet] = dataclasses.field(default_factory=dict)
    """Party -> images of its own that nobody trains on, by which it chooses settings."""
    taught: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Party -> (n, d) a teacher's embeddings of its images."""
    class_embeddings: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)
    """Party -> (k, d) class embeddings of its identities, where a pre-training left some."""

    def __post_init__(self) -> None:
        for name in self.data:
            check_name(name)  # parties have folders

    @property
    def at_server(self) -> FaceSet | None:
        """The public images that the server holds, be they the parties' as well or not."""
        return self.public if self.server_public is None else self.server_public

    def members(self) -> dict[str, Member]:
        """What each party says of itself when it joins."""
        roles = {name: self.roles.get(name, "trainer") for name in self.data}
        return {n: Member(roles[n], len(faces), len(faces.names)) for n, faces in self.data.items()}

    def by_role(self) -> dict[str, list[str]]:
        """Role -> the parties that have it."""
        parties: dict[str, list[str]] = {}
        for name, member in self.members().items():
            parties.setdefault(member.role, []).append(name)
        return parties


@dataclass(frozen=True)
class Setup:
    """Everything that a process needs to play the parties; it can be sent to a worker."""

    method: Method
    build: Callable[[], FederatedData]
    """Makes the world anew in each process, so that pixels are mapped and never sent."""
    numerics: Numerics
    seed: int
    folder: Path
    save_replies: SaveReplies = True
    secure: SecureSettings | None = None
    """Replies leave in secure sums alone. Here the parties' secrets follow from the seed."""
    privacy: PartyPrivacy | None = None
    """With `secure`: how each reply is clipped, and what noise it leaves with. By itself it is the server's."""
    templates: TemplateNoise | None = None
    """With which templates leave; here it is drawn from the seed."""
    secret: Callable[[], bytes] | None = None
    """Of a party at its own node; see `Party.secret_rng`."""

    def context(self, world: FederatedData) -> ExecutorContext:
        """The executor's view of this process."""
        members, device = world.members(), torch.device(self.numerics.device)
        initial, public = world.backbone.shared(), None if world.public is None else PublicImages(world.public)
        extra_data: dict[str, Any] = {
            **dict.fromkeys(world.data, public),
            **world.calibration_data,
            **world.pairs,
            **world.taught,
        }
        computes = {p: dataclasses.replace(world.compute, augment=augment) for p, augment in world.augment.items()}

        def party(request: Request) -> Party:
            when = (request.stage, request.round, request.call)
            return Party(
                name=request.party,
                role=members[request.party].role,
                stage=request.stage,
                round=request.round,
                rounds=request.rounds,
                seed=self.seed,
                call=request.call,
                secret=self.secret,
                rng=generator(self.seed, "party", request.party, *when),
                data=world.data[request.party],
                device=device,
                backbone=world.backbone,
                initial=initial,
                compute=computes.get(request.party, world.compute),
                extra_data=extra_data[request.party],
                unlabelled=world.unlabelled.get(request.party),
                class_embeddings=world.class_embeddings.get(request.party),
            )

        return ExecutorContext(
            self.method,
            party,
            self.folder,
            save_replies=self.save_replies,
            processes_per_party=self.numerics.processes_per_party,
            update_dtype=self.numerics.update_dtype,
            sums=self._sums(),
            secret=seeded_secret(self.seed),
            templates=None if self.templates is None else TemplateRelease(self.templates, seeded_secret(self.seed)),
        )

    def _sums(self) -> PartySums | None:
        if self.secure is None:
            return None
        from coalface.engine.party.sums import PartySums, seeded_secret  # cryptography, which they need, is an extra

        own, every_run = self.folder / ANSWERS, self.folder / OPENED
        return PartySums(self.secure, seeded_secret(self.seed), own, self.seed, every_run, privacy=self.privacy)

    def prepare(self) -> None:
        """Set this process's arithmetic as the run's record says."""
        torch.set_num_threads(self.numerics.threads)
        torch.set_flush_denormal(self.numerics.flush_denormals)
        set_gpu_arithmetic(GpuArithmetic())
        keep_freed_memory()


class GpuArithmetic(NamedTuple):
    """How a GPU computes float32: as it is, by algorithms that give the same bits again.

    torch's own choice for convolutions is TF32, with 10 bits of a number's 23, and whichever algorithm is fastest.
    """

    tf32_convolutions: bool = False
    tf32_products: bool = False
    deterministic: bool = True


def set_gpu_arithmetic(wanted: GpuArithmetic) -> GpuArithmetic:
    """Set this process's arithmetic on GPUs; returns what it was. Without a GPU nothing comes of it."""
    cudnn: Any = torch.backends.cudnn
    matmul: Any = torch.backends.cuda.matmul
    before = GpuArithmetic(
        cudnn.conv.fp32_precision == "tf32", matmul.fp32_precision == "tf32", bool(cudnn.deterministic)
    )
    # by the older flags: where the newer ones are set, torch refuses to tell the older, which its ONNX exporter asks
    cudnn.allow_tf32, matmul.allow_tf32, cudnn.deterministic = wanted
    return before


def keep_freed_memory() -> None:
    """Tell glibc to keep up to 1 GiB of freed memory for reuse; other C libraries are left as they are.

    By default it gives the activations of every training step back to the kernel and takes them anew in the next, and
    the page faults cost up to a quarter of the step. It changes no bits.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        m_trim_threshold, m_mmap_threshold = -1, -3
        mallopt(m_mmap_threshold, 32 << 20)  # the largest that it admits
        mallopt(m_trim_threshold, 1 << 30)
