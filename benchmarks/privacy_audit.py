"""Audits in one run of the noised sums: `docs/privacy.md` has the table.

    PYTHONPATH=tests/privacy python benchmarks/privacy_audit.py

Two hundred canaries over two rounds, as in `tests/privacy/test_audit.py`, whose docstring has the bound. Printed are,
by noise multiplier, ε by the accountant and the least ε that 40 guesses leave possible at 95 %, of four secrets each.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from test_audit import DELTA, audited, least_epsilon

from coalface.privacy.accountant import Mechanism, epsilon
from coalface.privacy.dp import PartyPrivacy

ROUNDS, GUESSES, SECRETS = 2, 40, b"abcd"


def main() -> None:
    for noise_multiplier in (0.7, 1.0, 1.5, 3.0):
        bounds = []
        for letter in SECRETS:
            with tempfile.TemporaryDirectory() as folder:
                privacy = PartyPrivacy(noise_multiplier=noise_multiplier)
                coins, scores = audited(Path(folder), ROUNDS, privacy=privacy, secret=bytes([letter] * 32))
            bounds.append(least_epsilon(coins, scores, GUESSES))
        spent = epsilon({Mechanism(noise_multiplier): ROUNDS}, DELTA)
        print(f"{noise_multiplier:4} {spent:6.2f}  {', '.join(f'{bound:.2f}' for bound in sorted(bounds))}", flush=True)


if __name__ == "__main__":
    main()
