"""The losses of Bradley-Terry and Davidson on real comparisons by people, against R's `psychotools::btmodel`.

The data (sound quality, first names, German parties) is in Debian's r-cran-psychotools, read where that is installed.
The numbers are of R 4.2.2 with psychotools 0.7-2:

    library(psychotools); data(FirstNames)
    m <- btmodel(FirstNames$preference, ref = 1); print(m$coefficients, digits = 10); logLik(m)

`SoundQuality` without ties: `btmodel(SoundQuality$preference, ref = 1)`. With ties: a listener's choices in the first
and of the second repetition, 0 where they differ (`sign(first + second)` of rows with the same id, time and progmat),
then `btmodel(paircomp(both, labels = labels(SoundQuality$preference)), undecided = TRUE, ref = 1)`.
"""

import csv
import io
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from guerdon.train.preferences import preference_terms

DATA = Path("/usr/lib/R/site-library/psychotools/data")
pytestmark = pytest.mark.skipif(
    not DATA.is_dir() or shutil.which("Rscript") is None, reason="needs Debian's r-cran-psychotools"
)
EXPECTED = {
    "FirstNames": ([0.1781926850, -0.2063869215, -0.4542674757, -0.9753049000, -0.3750857972], -1888.88325666),
    "GermanParties2009": ([-0.2405083290, 1.5613170281, 1.1886603256, 0.5511819277, 0.3755616499], -1716.80732183),
    "SoundQuality": (
        [0.5828622256, 2.6114201526, 2.2896917463, 2.4795668728, 2.3536517832, 2.1099014871, 2.4757488719],
        -11840.84628173,
    ),
}
TIED = (
    [1.0200254873, 4.5352007102, 4.0063984665, 4.2861736293, 4.0160397385, 3.5865525103, 4.2633572107],
    0.3260471836,
    -7531.45951916,
)


def rows(name):
    """The comparisons of a data set: objects, columns that identify a row, and (subjects, pairs) of 1, 0 or -1."""
    script = (
        f'suppressMessages(library(psychotools)); load("{DATA / (name + ".rda")}"); d <- {name}; '
        'write.csv(cbind(d[!sapply(d, inherits, "paircomp")], as.matrix(d$preference)), row.names = FALSE)'
    )
    done = subprocess.run(["Rscript", "-e", script], check=True, capture_output=True, text=True)
    table = list(csv.DictReader(io.StringIO(done.stdout)))
    pairs = [key for key in table[0] if ":" in key]
    objects = list(dict.fromkeys(one for pair in pairs for one in pair.split(":")))
    return objects, table, np.array([[float(row[pair]) for pair in pairs] for row in table])


def fitted(choices_N_P, n):
    """Strengths with that of the first object 0, the logarithm of Davidson's parameter, and the log-likelihood."""
    pairs = torch.tensor([(i, j) for j in range(n) for i in range(j)])  # psychotools: 1:2, 1:3, 2:3, 1:4, ...
    choices = torch.tensor(choices_N_P)
    strengths, log_ties = (torch.zeros(k, dtype=torch.float64, requires_grad=True) for k in (n - 1, 1))
    ties = bool((choices == 0).any())
    counts = {sign: (choices == sign).sum(0).double() for sign in (1, -1, 0)}

    def loss():
        values = torch.cat([torch.zeros(1, dtype=torch.float64), strengths])[pairs]
        total = torch.zeros((), dtype=torch.float64)
        for sign, count in counts.items():
            better, worse = (values[:, [0]], values[:, [1]]) if sign >= 0 else (values[:, [1]], values[:, [0]])
            terms = preference_terms(
                better, worse, tied_P=torch.full((len(pairs),), sign == 0), margins_P=torch.zeros(len(pairs)),
                log_ties=log_ties[0] if ties else None,
            )  # fmt: skip
            total = total + (terms[:, 0] * count).sum() if sign or ties else total
        return total

    optimizer = torch.optim.LBFGS(
        [strengths, log_ties], max_iter=500, tolerance_grad=1e-9, tolerance_change=1e-14, line_search_fn="strong_wolfe"
    )

    def step():
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    optimizer.step(step)
    return strengths.detach().numpy(), log_ties.item(), -loss().item()


@pytest.mark.parametrize("name", EXPECTED)
def test_bradley_terry_is_rs(name):
    objects, _, choices = rows(name)
    strengths, _, likelihood = fitted(choices, len(objects))
    wanted, log_likelihood = EXPECTED[name]
    np.testing.assert_allclose(strengths, wanted, atol=1e-5)
    assert likelihood == pytest.approx(log_likelihood, abs=1e-6)


def test_davidson_is_rs():
    objects, table, choices = rows("SoundQuality")
    first, second = (
        {(r["id"], r["time"], r["progmat"]): v for r, v in zip(table, choices, strict=True) if r["repet"] == repetition}
        for repetition in ("1", "2")
    )
    both = np.sign([first[key] + second[key] for key in first if key in second])
    assert [int((both == sign).sum()) for sign in (-1, 0, 1)] == [4390, 2705, 1669]
    strengths, log_ties, likelihood = fitted(both, len(objects))
    np.testing.assert_allclose(strengths, TIED[0], atol=1e-5)
    assert log_ties == pytest.approx(TIED[1], abs=1e-5)
    assert likelihood == pytest.approx(TIED[2], abs=1e-6)
