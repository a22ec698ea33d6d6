"""Who is still recognised by templates that left with noise on the sphere: `docs/privacy.md` has the table.

    python benchmarks/template_noise.py MODEL       # a run's folder or a model's, trained on synthetic faces

Two hundred synthetic people that no recipe trains on, of ten images each. A template is the mean feature of five. Who
has seen T releases of it takes their mean, and looks for it among the mean features of everybody's other five. Printed
is how often the right person comes first: the mean over `DRAWS` draws of the noise.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from torch import Tensor

import coalface as cf
from coalface.data.synthetic.generator import SyntheticFaces
from coalface.privacy.templates import TemplateNoise, noised_rows

PEOPLE, IMAGES, SEED, DRAWS = 200, 10, 4242, 20


def mean_features(features: Tensor) -> Tensor:
    """(people, d) at length one, of (people, images, d)."""
    return torch.nn.functional.normalize(torch.nn.functional.normalize(features, dim=-1).mean(1), dim=-1)


def recognised(templates: Tensor, others: Tensor) -> float:
    """The share of templates whose nearest of the others is the same person's."""
    return float(((templates @ others.T).argmax(1) == torch.arange(len(others))).double().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--releases", type=int, nargs="+", default=[1, 3, 30])
    parser.add_argument("--noise-multipliers", type=float, nargs="+", default=[0.05, 0.2, 1.0, 4.0])
    arguments = parser.parse_args()
    model = cf.FaceModel.from_run(arguments.model)
    faces = SyntheticFaces(PEOPLE, IMAGES, seed=SEED, domains=("studio",)).generate()
    features = torch.from_numpy(model.embed(faces)).double()[torch.from_numpy(np.argsort(faces.labels, kind="stable"))]
    by_person = features.view(PEOPLE, IMAGES, -1)
    templates, others = mean_features(by_person[:, ::2]), mean_features(by_person[:, 1::2])
    print(f"without noise: {100 * recognised(templates, others):.1f} % of {PEOPLE}, d = {templates.shape[1]}")
    rng = np.random.default_rng(0)
    for z in arguments.noise_multipliers:
        for releases in arguments.releases:
            shares = []
            for _ in range(DRAWS):
                drawn = torch.from_numpy(rng.standard_normal((releases, *templates.shape)))
                mean = noised_rows(templates.expand_as(drawn), z, drawn).mean(0)
                shares.append(recognised(mean, others))
            epsilon = TemplateNoise(noise_multiplier=z).epsilon(releases)
            print(f"z = {z:g}, T = {releases}: ε = {epsilon:.1f}, {100 * np.mean(shares):.1f} %")


if __name__ == "__main__":
    main()
