"""The kinds of figures of a run's own clients, as `summary.json` names them, for evaluators and readers.

Imports nothing, so that what reads runs needs nothing of what evaluates them.
"""

ENROLLED_BY = ("features", "codewords")
"""What clients are verified by, as the summary names it below `enrolled`."""

SERVED_BY = {
    "start": "the model before the run",
    "shared": "everybody's model",
    "own": "its own backbone",
    "branch": "its own backbone and branch",
}
"""By which model a client's own people are evaluated, as the summary names it below `personalised`, and in words."""
