import pytest
import torch
from helpers import rng

from es_medical.groups import D4, Rotations
from es_medical.losses import EquivariantSplitting, RampWeighting
from es_medical.networks import MoDL, ReynoldsAveraging, unet
from es_medical.physics.batch import Batch
from es_medical.physics.ct import CT
from es_medical.physics.ct_geometry import ParallelBeam
from es_medical.physics.virtual import turn_items
from es_medical.splits import Split

pytest.importorskip("astra")


def scanner(n_views=5, n_sub=4, size=12, mask=None):
    ct = CT(ParallelBeam((size, size), n_views=n_views), mask)
    return ct.with_turns(Rotations(n_sub).angles(ct.geometry.spacing))


def blob(size, x, y):
    """A smooth spot at (x right, y up) in pixels from the centre."""
    position = torch.arange(size) - (size - 1) / 2
    return torch.exp(-((position - x) ** 2 + (-position[:, None] - y) ** 2) / 18)[None, None]


def dense(physics):
    return physics.A(torch.eye(physics.image_size[0] ** 2).view(-1, 1, *physics.image_size)).flatten(1).T.double()


def test_turned_scanner_sees_an_image_as_the_scanner_sees_it_turned():
    """A T_phi x = A (T_phi x) for spots that are turned exactly, counter-clockwise by phi = 9 degrees and multiples."""
    physics = scanner(5, 4, 48)
    for k in range(4):
        phi = torch.tensor(9.0 * k).deg2rad()
        x, y = 9.0, 4.0
        turned = blob(48, float(x * phi.cos() - y * phi.sin()), float(x * phi.sin() + y * phi.cos()))
        expected = physics.A(turned)
        found = physics.turned(k).A(blob(48, x, y))
        assert (found - expected).norm() < 5e-3 * expected.norm()
        assert k == 0 or (physics.A(blob(48, x, y)) - expected).norm() > 5e-2 * expected.norm()


def test_turned_scanners_share_norm_and_mask_also_after_masking():
    mask = torch.tensor([1, 0, 1, 1, 1])
    physics = scanner(5, 3, mask=mask)
    masked = physics.masked(Split("rays", 0.5)(physics, 4, rng()))
    for k in (1, 2):
        assert torch.equal(physics.turned(k).norm, physics.norm)
        assert torch.equal(physics.turned(k).mask, physics.mask)
        assert torch.equal(masked.turned(k).mask, masked.mask)


def test_linear_reconstruction_of_each_item_is_that_of_its_own_turned_scanner():
    physics = scanner(9, 3, 16)
    mixed = turn_items(physics, torch.tensor([2, 0, 1]))
    y, m = physics.A(blob(16, 2.0, -1.0)).expand(3, -1, -1, -1), Split("views", 0.7)(physics, 3, rng())
    expected = [physics.turned(k).masked(m[i : i + 1]).initial(m[i : i + 1] * y[:1]) for i, k in enumerate((2, 0, 1))]
    torch.testing.assert_close(mixed.masked(m).initial(m * y), torch.cat(expected))
    assert mixed.baseline == physics.baseline
    assert (mixed.initial(y)[0] - mixed.initial(y)[1]).norm() > 0.05 * mixed.initial(y)[0].norm()


@pytest.mark.parametrize(("n_views", "gains"), [(8, False), (7, True)])
def test_d4_widens_what_an_odd_number_of_views_sees_only(n_views, gains):
    """Largest share of A T_g's rows outside the range of A^T, over all of D4."""
    physics = scanner(n_views, 2, 16)
    u, s, vh = torch.linalg.svd(dense(physics), full_matrices=False)
    seen = vh[s > 1e-4 * s[0]]

    def unseen(rows):
        return float((rows - rows @ seen.T @ seen).norm() / rows.norm())

    rows = dense(physics).view(-1, 1, 16, 16)
    outside = [unseen(D4().inverse(rows, g.expand(len(rows))).flatten(1)) for g in D4().elements()]
    assert (max(outside) > 0.05) == gains
    assert gains or max(outside) < 1e-3
    assert unseen(dense(physics.turned(1))) > 0.05


def test_weighted_es_with_rotations_trains_a_d4_reconstructor_on_ct():
    torch.manual_seed(0)
    physics = scanner(9, 2, 16)
    network = ReynoldsAveraging(MoDL(unet(1, (4, 8)), n_iterations=2), D4())
    x = blob(16, 2.0, -1.0) + 0.5 * blob(16, -3.0, 2.0)
    y = physics.A(x.expand(4, -1, -1, -1))
    loss = EquivariantSplitting(Split("views", 0.7), 1e-3, group=Rotations(2), weighting=RampWeighting())
    optimiser, generator, values = torch.optim.Adam(network.parameters(), 1e-2), rng(), []
    for _ in range(15):
        optimiser.zero_grad()
        value = loss(network, Batch(y, physics), generator).total.mean()
        value.backward()
        optimiser.step()
        values.append(float(value.detach()))
    assert sum(values[-5:]) < 0.7 * sum(values[:5])
    assert all(p.grad is not None for p in network.parameters())
