"""Local results: what a party gives the lab without sending it, each by a step of the method.

A step that gives one names it, `@step(role="trainer", local=OWN_MODEL)`, and returns tensors by name (`Tensors`), or
none where the party has nothing to tell. Its result is no message: it has no commit and no line in a ledger, and a
method cannot ask for it. `coalface.engine.server.Server.local_results` gives it to the evaluator that knows the kind.

Another kind is one more `LocalResult`, which the method and its evaluator import from where it is defined.
"""

from __future__ import annotations

import torch

from coalface.core.declarations import content, message
from coalface.core.steps import LocalResult


@message
class Probes:
    """What a party verifies as it would somebody who claims to be its own person: images, already embedded."""

    embeddings: torch.Tensor = content("template")
    """(n, d) by the shared model, not brought to length one."""


OWN_MODEL = LocalResult("own model")
"""The party's whole backbone by name, where the run leaves one model per party (`Models(shared=None)`)."""

OWN_SCORES = LocalResult("own scores", each=Probes)
"""How the party verifies `each: Probes` by itself: `scores` (n,), higher for its own person, and its `threshold` (1,)
if it has one; nothing where it has not enrolled. Needs a shared model, which embeds the probes."""

PERSONAL_MODEL = LocalResult("personal model")
"""The party's own model for its own people, beside that for everybody: the tensors of the backbone, and where its
features are mapped further, x ↦ A x + a, A as `branch.weight` and a as `branch.bias`."""

CLASS_EMBEDDINGS = LocalResult("class embeddings")
"""The `class_embeddings` (k, d) of a pooled party's identities. A run that starts from this one's model may want them,
if its parties share these images."""

PSEUDO_LABELS = LocalResult("pseudo labels")
"""The `labels` (n,) that the party has for its own images, −1 for none."""

PUBLIC_IMAGES_USED = LocalResult("public images used")
"""How many public `images` (rounds,) the party trained on, in each round that it took part in."""
