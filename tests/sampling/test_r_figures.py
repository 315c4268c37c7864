"""Against figures of R's `sampling` and `survey`, which r_figures.R makes."""

import json
from pathlib import Path

import numpy as np
import pytest

from isfed.sampling import (
    Clustered,
    ConditionalPoisson,
    Sampford,
    Stratified,
    Systematic,
    Tille,
    estimate_mean,
    estimate_total,
    inclusion_probabilities,
)

FIGURES = json.loads(Path(__file__).with_name("r_figures.json").read_text(encoding="utf-8"))
UNITS = np.array(FIGURES["drawn"])
VALUES = np.array(FIGURES["values"])
INCLUSION = np.array(FIGURES["inclusion"])
SEEN = VALUES[UNITS]


@pytest.mark.parametrize("design", [Tille(), Sampford(), ConditionalPoisson(), Systematic()])
@pytest.mark.parametrize("example", ["help", "book", "many"])
def test_joint(design, example):
    """UPtillepi2, UPsampfordpi2, UPmaxentropypi2 and UPsystematicpi2."""
    inclusion = np.array(FIGURES[f"{example} inclusion"])
    expected = np.array(FIGURES[f"{example} {type(design).__name__}"])
    accuracy = 1e-11 if isinstance(design, ConditionalPoisson) else 1e-13
    np.testing.assert_allclose(design.joint(inclusion), expected, rtol=0.0, atol=accuracy)


def test_inclusion_probabilities():
    np.testing.assert_allclose(inclusion_probabilities(np.arange(1, 21) ** 1.3, 8), INCLUSION)
    sizes = [1, 1, 2, 3, 40, 5, 9, 80]
    np.testing.assert_allclose(inclusion_probabilities(sizes, 4), FIGURES["certain"])


def total(kind, **given):
    return estimate_total(SEEN, UNITS, INCLUSION, design=Sampford(), variance=kind, **given)


def test_totals():
    """HTestimator, Hajekestimator, varHT and varest of `sampling`; svytotal with ppsmat."""
    assert total(None).value == pytest.approx(FIGURES["HTestimator"], rel=1e-13)
    hajek = total(None, method="hajek").value
    assert hajek == pytest.approx(FIGURES["Hajekestimator"], rel=1e-13)
    for kind, names in {
        "horvitz-thompson": ("varHT 1", "svytotal HT"),
        "sen-yates-grundy": ("varHT 2", "svytotal YG"),
    }.items():
        squared = total(kind).stderr ** 2
        assert squared == pytest.approx(FIGURES[names[0]], rel=1e-11)
        assert squared == pytest.approx(FIGURES[names[1]][1] ** 2, rel=1e-11)
    assert total("deville").stderr ** 2 == pytest.approx(FIGURES["varest"], rel=1e-13)


def test_means():
    """svymean, and vartaylor_ratio of the ratio to a variable that is 1."""
    for kind, name in {"horvitz-thompson": "HT", "sen-yates-grundy": "YG"}.items():
        found = estimate_mean(SEEN, UNITS, INCLUSION, design=Sampford(), variance=kind)
        expected = FIGURES[f"svymean {name}"]
        assert (found.value, found.stderr) == pytest.approx(expected, rel=1e-11)
        if name == "HT":
            assert found.stderr**2 == pytest.approx(FIGURES["vartaylor_ratio"], rel=1e-11)


def test_strata_and_clusters():
    """svytotal of equal probabilities in strata, and of clusters, with finite populations."""
    strata = np.repeat([1, 2], [12, 8])
    units = np.array(FIGURES["equal"])
    inclusion = np.where(strata == 1, 4 / 12, 3 / 8)
    design = Stratified(ConditionalPoisson(), strata)
    found = estimate_total(VALUES[units], units, inclusion, design=design)
    assert (found.value, found.stderr) == pytest.approx(FIGURES["svytotal strata"], rel=1e-12)
    units = np.array(FIGURES["whole"])
    design = Clustered(ConditionalPoisson(), np.arange(20) // 2)
    found = estimate_total(VALUES[units], units, np.full(20, 0.4), design=design)
    assert (found.value, found.stderr) == pytest.approx(FIGURES["svytotal clusters"], rel=1e-12)


def test_brewer_and_its_interval():
    """svytotal with pps="brewer", and confint with the degrees of freedom of the design."""
    found = total("brewer")
    assert (found.value, found.stderr) == pytest.approx(FIGURES["svytotal brewer"], rel=1e-12)
    assert (found.low, found.high) == pytest.approx(FIGURES["confint brewer"], rel=1e-12)
