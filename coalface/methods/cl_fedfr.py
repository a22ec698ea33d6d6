"""After SS-FedFR and CL-FedFR: FedFR whose clients know a part of their people's identities, or see easy images first.

Dube et al., "CL-FedFR: curriculum learning for federated face recognition", VISIGRAPP 2024, whose public code has the
semi-supervised SS-FedFR too. Both are settings of `fedfr-joint`, and so of its kin; these names have them on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from coalface.methods.fedfr_joint import FedFRJoint
from coalface.training.joint.own_images import Curriculum


@dataclass(frozen=True, kw_only=True)
class SSFedFR(FedFRJoint):
    """`fedfr-joint` whose images of unknown identity join where their largest cosine to [Φ ; W] is above 0.5.

    Otherwise than in the code, one that is nearest to a public person does not join, and features are those of
    evaluation. It joins the images of `data.unlabelled`; without any it is `fedfr-joint`.
    """

    title: ClassVar[str] = "after SS-FedFR: FedFR that labels images of unknown identity"
    paper: ClassVar[str] = "after Dube et al. 2024, and their public code"

    pseudo_labels: float | None = 0.5


@dataclass(frozen=True, kw_only=True)
class CLFedFR(FedFRJoint):
    """`fedfr-joint` on the easier half of each client's images first, then on all.

    The paper's order is by head pose, |pitch| + |yaw| + |roll|, or a quality network; here it is by a simple measure.
    """

    title: ClassVar[str] = "after CL-FedFR: FedFR on each client's easier images first"
    paper: ClassVar[str] = "after Dube et al. 2024"

    curriculum: Curriculum | None = Curriculum()
