"""The table of methods: consistent in itself and with the factories that make losses and networks."""

import pytest

from es_medical.losses import build_loss
from es_medical.methods import BASELINE, LEARNING_FREE, METHODS, RENAMED, TABLE, TRAINED, current_name, method_of
from es_medical.networks.learning_free import LEARNING_FREE as RECONSTRUCTORS
from es_medical.splits import Split


def test_a_row_stands_under_its_own_name_and_pairs_share_their_loss():
    assert all(method.name == name for name, method in TABLE.items())
    for method in METHODS.values():
        assert bool(method.pair) == (method.trained and not method.equivariant)
        if method.pair:
            other = TABLE[method.pair]
            assert (other.loss, other.passes, other.kind, other.equivariant) == (method.loss, method.passes, method.kind, True)


def test_methods_that_learn_nothing_are_those_that_have_a_reconstructor_and_no_loss():
    assert [name for name in METHODS if name not in TRAINED] == list(RECONSTRUCTORS)
    assert {bool(method.loss) for method in METHODS.values() if method.trained} == {True}
    assert not any(method.loss or sum(method.passes) for method in TABLE.values() if method.kind == LEARNING_FREE)


def test_the_baseline_stands_in_tables_and_is_no_choice():
    assert BASELINE in TABLE
    with pytest.raises(ValueError, match="unknown method 'baseline': choose one of supervised, .*biharmonic"):
        method_of("baseline")


@pytest.mark.parametrize(("earlier", "name"), RENAMED.items())
def test_an_earlier_name_is_the_same_method(earlier, name):
    assert current_name(earlier) == name
    assert method_of(earlier) is METHODS[name]
    assert earlier not in TABLE


def test_ei_lot_is_ei_with_alternating_terms():
    from es_medical.groups import FineRotations

    assert build_loss("ei_lot", Split(), 0.1, transform=FineRotations()).alternating
