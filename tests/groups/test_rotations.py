import pytest
import torch
from dense_ct import DenseCT, even_views
from helpers import line_mri, randn, rng

from es_medical.groups import D4, Flips, Rotations
from es_medical.losses import EquivariantSplitting, RampWeighting
from es_medical.networks import MoDL, ReynoldsAveraging, unet
from es_medical.physics import VirtualPhysics
from es_medical.physics.batch import Batch
from es_medical.physics.virtual import TurnedPhysics, draw_virtual, turn_items
from es_medical.randomness import item_generator
from es_medical.splits import Split


def scanner(size=6, views=4, n_sub=4):
    return DenseCT(size, even_views(views, n_sub))


def items(n):
    return [item_generator(0, str(i)) for i in range(n)]


def nonlinear(y, physics, generator=None):
    """A fixed nonlinear reconstructor that reads the operator and is not equivariant."""
    x = physics.A_adjoint(y)
    ramp = torch.linspace(-0.5, 1.0, x.shape[-1]) + torch.linspace(0, 0.7, x.shape[-2])[:, None].square()
    return torch.tanh(1.5 * x + ramp)


def every_element(physics, group):
    """A T_g for every g of the group, one for each item."""
    turn, g = group.elements()
    return VirtualPhysics(turn_items(physics, turn), group.base, g)


def mean_gram(physics, group):
    """Q = E_g (A T_g)^T (A T_g) as a matrix over the pixels."""
    n = physics.size
    base = group.base if isinstance(group, Rotations) else group
    total = torch.zeros(n**2, n**2, dtype=torch.float64)
    for k in range(group.n_sub if isinstance(group, Rotations) else 1):
        rows = physics.turned(k).matrix.view(-1, 1, n, n)
        for g in base.elements():
            moved = base.inverse(rows, g.expand(len(rows))).flatten(1)  # rows of A T_g
            total += moved.T @ moved
    return total / group.order


def rank(gram):
    return int((torch.linalg.eigvalsh(gram) > 1e-10 * torch.linalg.matrix_norm(gram, 2)).sum())


def test_elements_are_all_pairs_and_the_identity_stands_first():
    for group in (Rotations(4), Rotations(3, Flips()), Rotations(1)):
        turn, g = group.elements()
        assert len({(int(k), int(h)) for k, h in zip(turn, g, strict=True)}) == group.order == len(turn)
        assert group.order == group.n_sub * group.base.order
        assert set(turn.tolist()) == set(range(group.n_sub))
        assert (int(turn[0]), int(g[0])) == (0, 0)


def test_angles_divide_the_view_spacing():
    assert Rotations(4).angles(3.6) == pytest.approx([0, 0.9, 1.8, 2.7])
    assert Rotations(1).angles(3.6) == [0]


@pytest.mark.parametrize("n_sub", [0, -1, 1.5])
@pytest.mark.usefixtures("unchecked")
def test_impossible_number_of_angles_is_refused(n_sub):
    with pytest.raises(ValueError, match=f"n_sub must be a whole number, at least 1, got {n_sub}"):
        Rotations(n_sub)


def test_batch_with_one_generator_shares_its_angle_and_no_more():
    turn, g = Rotations(4).sample(64, rng())
    assert len(turn.unique()) == 1
    assert len(g.unique()) == 8
    assert turn.device.type == "cpu"


def test_angles_and_base_elements_are_uniform_and_independent():  # chi-square of pairs, normal approximation, 6 deviations
    group, n = Rotations(4), 6_400
    turn, g = group.sample(n, items(n))
    generator = rng(1)
    draws = [group.sample(1, generator) for _ in range(n)]
    shared = torch.cat([one.turn for one in draws]), torch.cat([one.base for one in draws])
    for k, h in ((turn, g), shared):
        pairs = torch.bincount(8 * k + h, minlength=32)
        assert ((pairs - n / 32) ** 2 / (n / 32)).sum() < 31 + 6 * 62**0.5


def test_items_own_generators_decide_their_elements_whatever_the_batch():
    group = Rotations(4)
    together = group.sample(12, items(12))
    assert len(together.turn.unique()) == 4
    for i in (11, 0, 5):
        turn, g = group.sample(1, [item_generator(0, str(i))])
        assert (int(turn), int(g)) == (int(together.turn[i]), int(together.base[i]))


def test_seed_decides_the_draw():
    def draw(seed):
        generator = rng(seed)
        return [int(Rotations(64).sample(1, generator).turn) for _ in range(8)]

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_first_angle_is_the_group_itself():
    physics, group = scanner(), Rotations(1)
    x = randn(8, 1, 6, 6, dtype=torch.float64)
    torch.testing.assert_close(every_element(physics, group).A(x), VirtualPhysics(physics, D4(), D4().elements()).A(x))


def test_batch_with_one_angle_needs_one_operator():
    virtual = draw_virtual(scanner(), Rotations(4), 8, rng(), "cpu")
    assert isinstance(virtual.physics, DenseCT)
    assert isinstance(draw_virtual(scanner(), Rotations(4), 8, items(8), "cpu").physics, TurnedPhysics)


@pytest.fixture(scope="module")
def scan():
    physics = scanner(4, 3)
    return physics, physics.A(3 * randn(1, 1, 4, 4, seed=2, dtype=torch.float64))


@pytest.fixture(scope="module")
def exact(scan):
    """The loss of each pair of the group, without a group of its own, for 200 seeds: (200, 32)."""
    physics, y = scan
    with torch.no_grad():
        plain = EquivariantSplitting(Split("views", 0.6), 0.1, weighting=RampWeighting())
        ys, virtual = y.expand(32, -1, -1, -1), every_element(physics, Rotations(4))
        return torch.stack([plain(nonlinear, Batch(ys, virtual), rng(100 + i)).total for i in range(200)])


@pytest.mark.parametrize("own", [True, False], ids=["own angles", "shared angle"])
def test_expectation_of_the_drawn_loss_is_the_mean_over_all_pairs(own, scan, exact):  # 4 standard errors
    physics, y = scan
    loss = EquivariantSplitting(Split("views", 0.6), 0.1, group=Rotations(4), weighting=RampWeighting())
    with torch.no_grad():
        if own:
            drawn = loss(nonlinear, Batch(y.expand(600, -1, -1, -1), physics), items(600)).total
        else:
            generator, batch = rng(1), Batch(y.expand(8, -1, -1, -1), physics)
            drawn = torch.stack([loss(nonlinear, batch, generator).total.mean() for _ in range(200)])
    terms = exact.mean(0)
    assert terms.std() > 0.02 * terms.mean()  # the terms differ
    means = exact.mean(1)
    error = (drawn.var() / len(drawn) + means.var() / len(means)).sqrt()
    assert (drawn.mean() - means.mean()).abs() < 4 * error


def test_beside_a_d4_reconstructor_only_the_angle_matters():
    """For f equivariant to the base group the loss of (k, h) is that of (k, identity), Theorem 3 of the paper."""
    torch.manual_seed(0)
    network = MoDL(unet(1, (4, 8)), n_iterations=1).double()
    for parameter in network.denoiser.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    f, physics, split = ReynoldsAveraging(network, D4()).eval(), scanner(8, 5), Split("views", 0.6)
    y = physics.A(randn(32, 1, 8, 8, dtype=torch.float64)[:1].expand(32, -1, -1, -1))
    m1 = split(physics, 1, rng()).expand(32, -1, -1, -1)
    virtual = every_element(physics, Rotations(4))
    with torch.no_grad():
        x_hat = f(m1 * y, virtual.masked(m1))
        predicted = virtual.A(x_hat).view(4, 8, -1)
    torch.testing.assert_close(predicted, predicted[:, :1].expand_as(predicted), rtol=1e-5, atol=1e-5)
    assert (predicted[1, 0] - predicted[0, 0]).norm() > 1e-2 * predicted[0, 0].norm()


def test_gradients_reach_the_network_through_turned_operators():
    network, physics = ReynoldsAveraging(MoDL(unet(1, (4, 8)), n_iterations=2), D4()).double(), scanner(8, 5)
    y = physics.A(randn(4, 1, 8, 8, dtype=torch.float64))
    for generator in (rng(), items(4)):
        network.zero_grad()
        loss = EquivariantSplitting(Split("views"), 0.01, group=Rotations(4), weighting=RampWeighting())
        loss(network, Batch(y, physics), generator).total.mean().backward()
        assert all(p.grad is not None and p.grad.abs().max() > 0 for p in network.parameters())


def test_d4_adds_nothing_to_an_even_number_of_even_views():
    """16 views over 180 degrees, 24 x 24 pixels: D4 permutes the rays, and Q is A^T A to rounding."""
    physics = DenseCT(24, even_views(16, 4))
    gram = physics.matrix.T @ physics.matrix
    torch.testing.assert_close(mean_gram(physics, D4()), gram, rtol=0, atol=1e-12)
    assert rank(mean_gram(physics, D4())) == rank(gram) < 24**2


def test_d4_doubles_the_angles_of_an_odd_number_of_views_and_rotations_multiply_any():
    odd, even = DenseCT(24, even_views(15, 4)), DenseCT(24, even_views(16, 4))
    alone = {physics: rank(physics.matrix.T @ physics.matrix) for physics in (odd, even)}
    assert rank(mean_gram(odd, D4())) > 1.4 * alone[odd]
    assert rank(mean_gram(even, Rotations(4))) > 1.5 * alone[even]
    assert rank(mean_gram(odd, Rotations(4))) >= rank(mean_gram(odd, D4()))


def test_whole_view_spacings_add_next_to_nothing():
    """Why the angles are fractions of the spacing: turned by one view, the scanner sees the same rays once more."""
    step = even_views(16)
    turned = DenseCT(24, torch.cat((step, step + 180 / 16, step + 2 * 180 / 16)))
    group = Rotations(3, Flips())
    assert rank(mean_gram(turned, group)) == rank(turned.matrix.T @ turned.matrix)


def test_operator_that_can_not_be_turned_is_named():
    with pytest.raises(TypeError, match=r"MRI can't be turned: Rotations need an operator with turned\(k\), such as CT"):
        draw_virtual(line_mri((8, 8)), Rotations(4), 2, rng(), "cpu")


def test_sides_are_checked_by_the_base_group():
    with pytest.raises(ValueError, match="32 x 24"):
        Rotations(4).check((32, 24))
    Rotations(4, Flips()).check((32, 24))


@pytest.mark.usefixtures("unchecked")
def test_averaging_over_rotations_names_the_way_out():
    with pytest.raises(TypeError, match=r"no action on pixels.*EquivariantSplitting\(group=\.\.\.\)"):
        ReynoldsAveraging(MoDL(unet(1, (4, 8))), Rotations(4))
