"""The dry run of a recipe: its checks, plan, bytes, memory and disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from coalface.core import disk
from coalface.core.checks import nearest
from coalface.core.errors import RecipeError
from coalface.core.method import Method, plays
from coalface.core.text import several
from coalface.data.faceset import FaceSet
from coalface.data.stores import telling_passed_over
from coalface.engine.robust.aggregators import Aggregator
from coalface.experiments.callbacks.tracker import trackers_of
from coalface.experiments.plan import on_paper, privacy_budget
from coalface.experiments.plan.messages import Plan
from coalface.experiments.plan.text import footprint_lines, images_text, messages_text, together_text, traffic_lines
from coalface.experiments.recipe import loader, validate
from coalface.experiments.recipe.schema import Recipe
from coalface.experiments.setup import device, domains, party_data, shards, sources
from coalface.experiments.setup.parts import VALIDATOR, Parts, imported_weights
from coalface.methods import METHODS
from coalface.methods.fednova import FedNova
from coalface.privacy import countersign
from coalface.training.federated_validation import FederatedValidation


def nothing_evaluated(recipe: Recipe) -> str:
    """What a recipe without pairs lacks for an evaluation."""
    pairs = "evaluation: {pairs: {unseen: {kind: balanced, pairs: 300}}}"
    if held_out := getattr(recipe.data, "hold_out", 0):
        count = sum(held_out.values()) if isinstance(held_out, dict) else held_out
        return f"data.hold_out: {several(count, 'person is', 'people are')} held out and used for nothing; add {pairs}"
    return (
        "evaluation.pairs is empty, so nothing will be evaluated; keep people out of training by data.hold_out=20, and "
        f"add {pairs}; in Python, fit(…, hold_out=20) does both"
    )


def check(recipe: Recipe) -> dict[str, FaceSet]:
    """The trainers that a run would have, after what it checks before it writes: images, deal, lists, method and all.

    Images are listed and none is decoded: one that is damaged does not show. A pre-training is checked as well.
    Raises RecipeError, ValueError or OSError as a run would.
    """
    return _checked(recipe)[0]


def _checked(recipe: Recipe) -> tuple[dict[str, FaceSet], Plan, Parts]:
    """(a run's trainers, a round's messages among all parties, the recipe's parts), checked as a run is."""
    device.check_device(recipe)
    trackers_of(recipe)  # their packages are installed
    if recipe.pretrain is not None:
        inner = recipe.pretrain.recipe
        check_leaves_shared(inner)
        try:
            check(inner)
        except RecipeError as error:
            raise loader.within_pretrain(error) from None
        except (OSError, ValueError) as error:
            raise RecipeError(disk.explained(error), where="pretrain") from None
    elif recipe.model.weights is not None:
        imported_weights(recipe)
    nobody = () if recipe.own is not None and party_data.lacking(recipe) else None
    parts = Parts(recipe, sources.unseen, played=nobody)
    messages, members = planned(parts), parts.data.members()
    _ = parts.pairs  # they are checked as they are read
    _ = parts.client_batch  # which may be refused
    training = [name for name, member in members.items() if plays(member.role, "trainer")]
    return {name: parts.data.data[name] for name in sorted(training)}, messages, parts


def planned(parts: Parts) -> Plan:
    """The messages of a round. Raises RecipeError or ValueError for what cannot be carried out."""
    recipe, faults = parts.recipe, parts.recipe.faults
    for party in [] if parts.method.pools else [*faults.corrupt, *(name for name in faults.slow if name != "*")]:
        nearest(party, parts.data.data, "faults: the party")
    shards.check_shards(parts)
    if recipe.privacy.countersign:
        countersign.check_installed()
    messages = _on_paper(parts, parts.data.by_role())
    validate.check_secure(recipe)
    validate.check_private(recipe)
    privacy_budget.check(recipe, messages)
    if recipe.privacy.templates is not None:
        privacy_budget.check_templates(recipe.privacy.templates, messages)
    if recipe.engine.aggregator is not None:
        _check_aggregator(recipe, parts.method, messages, recipe.engine.aggregator)
    if recipe.server_optimizer is not None and (why := messages.own_server_step):
        raise RecipeError(
            f"it moves a backbone that would become the mean of the parties', and {recipe.method} is another method: "
            f"{why}; remove this key, or use one such as fedavg",
            where="server_optimizer",
        )
    return messages


def _check_aggregator(recipe: Recipe, method: Method, messages: Plan, aggregator: Aggregator) -> None:
    """Raise RecipeError where a robust mean has nothing to do, would undo what the method does, or has too few parties.

    A call whose parties depend on the round is checked with those of the second one.
    """
    where, why, name = "engine.aggregator", "", recipe.method
    if recipe.dp is not None:
        why = "privacy.dp adds noise for what a party can change of a sum, and a robust mean is none"
    elif isinstance(method, FedNova) or any(isinstance(part, FederatedValidation) for part in vars(method).values()):
        why = f"{name} finds a weight for each party, and a robust mean counts all the same"
    elif not messages.means:
        why = f"{name} asks for no mean over parties"
    if why:
        raise RecipeError(f"{why}; remove this key, or use another method", where=where)
    for step in {s.step for s in messages.sent if s.kind.endswith("aggregated")}:
        try:
            aggregator.liars(messages.parties[step])
        except ValueError as error:
            raise RecipeError(f"step {step}: {str(error).removeprefix(f'{where}: ')}", where=where) from None


def plan(recipe: Recipe) -> Plan:
    """One round's messages, with as many parties as the recipe would deal, and nothing else checked.

    For `coalface messages`: where the recipe names no validator, one stands in.
    """
    parts, validators = Parts(recipe, sources.unseen), tuple(recipe.validators) or ("validator-0",)
    roles: dict[str, Sequence[str]] = {VALIDATOR: validators}
    if parts.method.scenario == "domains" and recipe.domains is not None:
        kinds = domains.roles(recipe, domains.parties(recipe))
        for name in domains.parties(recipe):
            role = kinds.get(name, "trainer")
            roles[role] = [*roles.get(role, ()), name]
    else:
        roles["trainer"] = [f"party-{place:05d}" for place in range(_party_count(parts))]
    return _on_paper(parts, roles)


def _on_paper(parts: Parts, roles: Mapping[str, Sequence[str]]) -> Plan:
    recipe, trainers = parts.recipe, len(roles.get("trainer", ()))
    sample = getattr(parts.method, "sample", None)
    if trainers and sample is not None and sample > trainers:
        raise RecipeError(
            f"cannot sample {sample:,} of {trainers:,} parties; set it to as many or fewer, or to null for all of them",
            where=f"methods.{recipe.method}.sample",
        )
    updates = recipe.engine.update_dtype
    return on_paper.plan(parts.method, roles, parts.backbone, parts.public, updates, recipe.dp, recipe.secure)


def _party_count(parts: Parts) -> int:
    """Parties of a recipe; where each identity is one, that takes a look at the images."""
    if parts.method.pools:
        return 1
    if parts.own_parties:
        return len(parts.own_parties)
    names = parts.recipe.partition.names() if parts.recipe.partition is not None else None
    return len(parts.trainers if names is None else names)


def stand_in(method: str) -> list[str]:
    """Changes that give a method the data that it cannot be planned without, where no recipe is given."""
    scenario = METHODS.find(method, "METHOD").scenario
    if scenario == "private-public":
        return ["data={scenario: private-public, private: {identities: 80}}"]
    if scenario == "devices":
        return ["data.scenario=devices"]
    if scenario != "domains":
        return []
    parts = "{source: {domains: [studio]}, target: {domains: [street], first: 400}}"
    faces = f"{{kind: joined, parts: {parts}}}"
    return [f"data={{scenario: domains, source_domain: source, target_domain: target, clients: 4, faces: {faces}}}"]


def secure_sums(method: str) -> str:
    """Whether secure sums can hide what parties send by a method, or why not; and what they do not hide."""
    try:
        recipe = loader.load(None, [f"method={method}", *stand_in(method), "privacy.secure=true"])
        planned = plan(recipe)
    except RecipeError as error:
        return f"no: {error.text.partition('; choose')[0]}"
    rows = dict.fromkeys(row for planned_sum in planned.sums.values() for row in planned_sum.hidden.rows)
    return f"yes, but not rows of {', '.join(rows)} that one party alone changes" if rows else "yes"


def check_leaves_shared(pretraining: Recipe) -> None:
    """Raise RecipeError for a pre-training that would leave no model to start from, before anybody trains."""
    if not plan(pretraining).leaves_shared:
        policy = pretraining.model.policy
        norm = "" if policy == "average" else f", with pretrain.model.batchnorm=average in place of {policy}"
        raise RecipeError(
            f"{pretraining.method!r} leaves no global model to start from; use centralized{norm}",
            where="pretrain.method",
        )


def as_dict(recipe: Recipe) -> dict[str, Any]:
    """The plan of a run as plain values: parties, messages, what stays, rounds and bytes. Raises as `check` does."""
    parties, messages, parts = _checked(recipe)
    return {
        **{key: getattr(recipe, key) for key in ("name", "method", "seed")},
        "parties": {name: {"images": len(faces), "identities": len(faces.names)} for name, faces in parties.items()},
        "stages": [vars(stage) for stage in messages.stages],
        "sent": [vars(sent) for sent in messages.sent],
        "stays": messages.stays,
        "bytes": {way: messages.in_all(way) for way in ("down", "up")},
        "client_batch": parts.client_batch,
        **({"privacy": privacy_budget.as_dict(recipe.dp, messages)} if recipe.dp is not None else {}),
        **({"secure": {step: s.as_dict() for step, s in messages.sums.items()}} if messages.sums else {}),
    }


def describe(recipe: Recipe, warn: Callable[[str], None] = lambda line: None) -> str:
    """The plan of a run: who takes part, what travels, what memory and disk it takes. Raises as `check` does.

    `warn` is told of images that are not read at once, since they may be why it raises.
    """
    with telling_passed_over(warn):
        parties, messages, parts = _checked(recipe)
    engine, batch, left_open = recipe.engine, parts.client_batch, parts.left_open
    rounds = several(messages.rounds, "round")
    if len(messages.stages) > 1:
        rounds += f" ({', '.join(f'{stage.name} {stage.rounds}' for stage in messages.stages)})"
    roles = {s.step: s.role for s in messages.sent}
    asked = max(count for step, count in messages.parties.items() if roles[step] != VALIDATOR)
    validators = len(recipe.validators) if VALIDATOR in roles.values() else 0
    over = several(len(parties), "trainer") if validators else several(len(parties), "party", "parties")
    over += f" ({asked:,} a round)" if asked < len(parties) else ""
    over += f" and {several(validators, 'validator')}" if validators else ""
    every = several(engine.checkpoint_every, "round") if engine.checkpoint_every > 1 else "round"
    lines = [
        f"{recipe.name}: {recipe.method} over {over}, {rounds}, seed {recipe.seed}",
        "",
        messages_text(recipe, messages, [(len(faces), len(faces.names)) for faces in parties.values()]),
        "",
        *traffic_lines(messages),
        *([privacy_budget.sentence(recipe, messages)] if recipe.dp is not None else []),
        *dict.fromkeys(planned_sum.sentence() for planned_sum in messages.sums.values()),
        *([privacy_budget.templates_sentence(noised, messages)] if (noised := recipe.privacy.templates) else []),
        f"{several(engine.workers, 'process', 'processes')} of "
        f"{'as many threads as pay' if engine.threads == 'auto' else several(engine.threads, 'thread')}; a checkpoint "
        f"every {every}",
        *([f"measured when the run begins: engine.{', engine.'.join(left_open)}"] if left_open else []),
        *([together_text(recipe, parties, parts)] if batch else []),
        *(
            ["many small parties: engine.client_batch=auto computes them together, which is faster"]
            if parts.would_batch
            else []
        ),
        "",
        *footprint_lines(recipe, parties, messages, asked),
        "",
        f"checked as a run does before it begins: {images_text(parties)}, "
        f"{several(len(recipe.evaluation.pairs), 'list')} to evaluate on, the device {engine.device}",
        "not checked: whether every image can be decoded, which shows when they are packed",
        *([] if recipe.method in METHODS.own else [f"  the method's steps: coalface check-method {recipe.method}"]),
    ]
    if not recipe.starts_trained and (wrong := recipe.build_method().untrained()):
        lines.append(wrong)
    if not recipe.evaluation.pairs and recipe.test is None:
        lines.append(nothing_evaluated(recipe))
    return "\n".join(lines)
