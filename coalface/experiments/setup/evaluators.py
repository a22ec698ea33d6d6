"""The evaluators of a run: each says whether it applies, by what the parts of the recipe are."""

from __future__ import annotations

from coalface.core.checks import at_key
from coalface.core.errors import RecipeError
from coalface.evaluation import personalised
from coalface.evaluation.base import Evaluator, PublicImages
from coalface.evaluation.clustering import Clustering
from coalface.evaluation.enrolled import Enrolled
from coalface.evaluation.figures import declare
from coalface.evaluation.metrics.pair_figures import WHERE, find_figures
from coalface.evaluation.personalised import Personalised
from coalface.evaluation.verification import Verification
from coalface.experiments.setup.parts import Parts


def verify(parts: Parts) -> Evaluator:
    """The pair lists; without one there are no figures."""
    evaluation, device = parts.recipe.evaluation, parts.recipe.engine.device
    pair_figures = find_figures(evaluation.figures)
    for own in pair_figures:
        with at_key(WHERE):
            declare(own.figure)
    return Verification(
        parts.pairs,
        parts.backbone,
        evaluation.flip,
        device,
        evaluation.parties,
        fars=evaluation.fars,
        pair_figures=pair_figures,
    )


def evaluate_clients(parts: Parts) -> Evaluator | None:
    """The test images of those who are trained on. Raises RecipeError where nobody could be told apart."""
    settings, test = parts.recipe.evaluation.personalised, parts.split.test
    if test is None:
        return None
    if settings is None:
        return Enrolled(parts.data, parts.split.train, test)
    if len(served := personalised.tested(parts.clients, test)) < 2:
        raise RecipeError(
            f"it needs two or more clients with test images, and {len(served)} of data.partition has "
            "test images; assign identities to two or more, or use a smaller data.test.images",
            where="evaluation.personalised",
        )
    return Personalised(parts.data, parts.clients, test, **dict(settings))


def make_evaluators(parts: Parts) -> tuple[Evaluator, ...]:
    """Those that apply to a run, in the order of their parts of `summary.json`."""
    evaluators = [verify(parts), evaluate_clients(parts)]
    if parts.method.scenario == "domains":
        evaluators.append(Clustering(parts.truth))
    if parts.data.public is not None:
        evaluators.append(PublicImages(len(parts.data.public)))
    return tuple(evaluator for evaluator in evaluators if evaluator is not None)
