"""phi(T_g x) = T_g phi(x) for every cyclic shift, whatever the image."""

import pytest
import torch
from deepinv.models import UNet
from helpers import randn

from es_medical.groups import Shifts, shifts
from es_medical.networks import Accelerated, shift_unet, unet
from es_medical.networks.polyphase import keep_symmetry, same_shifts, strongest_component, wrap

CASES = [((8, 8), (4, 8)), ((4, 2), (4, 8)), ((8, 16), (4, 6, 8)), ((12, 24), (4, 6, 8)), ((8, 16), (3, 4, 5, 6))]
cases = pytest.mark.parametrize(("size", "widths"), CASES, ids=lambda one: "-".join(map(str, one)))


def lively(widths, channels=2, seed=0):
    """Random weights that are large enough for a strong response."""
    torch.manual_seed(seed)
    network = shift_unet(channels, widths)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return network


def gap(network, x):
    """Largest |phi(T_g x) - T_g phi(x)| over all shifts, relative to the largest value of phi(x); x is (1, C, H, W)."""
    group = Shifts(tuple(x.shape[-2:]))
    g = group.elements()
    xs = x.expand(len(g), -1, -1, -1)
    with torch.no_grad():
        out = network(x)
        difference = network(group.apply(xs, g)) - group.apply(out.expand_as(xs), g)
    return float(difference.abs().max() / out.abs().max())


def lines(size, slope):
    """An image that depends on i + slope * j alone, modulo the sides."""
    i, j = torch.meshgrid(*(torch.arange(n) for n in size), indexing="ij")
    n = min(size)
    return randn(1, 2, n, seed=4)[:, :, (i + slope * j) % n]


def symmetric_images(size):
    """Images that some shifts leave unchanged: there the components tie."""
    height, width = size
    i, j = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    images = {
        "zero": torch.zeros(1, 2, *size),
        "constant": torch.full((1, 2, *size), 0.7),
        "rows": randn(1, 2, height, 1).expand(-1, -1, -1, width),
        "columns": randn(1, 2, 1, width).expand(-1, -1, height, -1),
        "stripes": (1 - 2 * (i % 2)).float().expand(1, 2, -1, -1),
        "checkerboard": (1 - 2 * ((i + j) % 2)).float().expand(1, 2, -1, -1),
        "period 2": randn(1, 2, 2, 2).repeat(1, 1, height // 2, width // 2),
        "period 4 of rows": randn(1, 2, 4, 1).repeat(1, 1, height // 4, width) if height % 4 == 0 else randn(1, 2, *size),
    }
    if max(size) % min(size) == 0:
        images |= {"diagonal": lines(size, 1), "antidiagonal": lines(size, -1), "steep": lines(size, 3)}
    if height % 3 == width % 3 == 0:
        images |= {"period 3": randn(1, 2, 3, 3).repeat(1, 1, height // 3, width // 3)}
    return images


@cases
@pytest.mark.parametrize("seed", range(3))
def test_every_shift_of_an_image_moves_the_output_along(size, widths, seed):
    assert gap(lively(widths, seed=seed), randn(1, 2, *size, seed=seed)) < 1e-5


@cases
def test_images_with_a_shift_symmetry_are_no_exception(size, widths):
    network = lively(widths)
    gaps = {name: gap(network, x) for name, x in symmetric_images(size).items()}
    assert max(gaps.values()) < 1e-5, gaps


@cases
def test_output_has_the_symmetry_of_the_image(size, widths):
    """phi(x) = T_h phi(x) where x = T_h x: a constant image stays constant."""
    network = lively(widths)
    for name, x in symmetric_images(size).items():
        with torch.no_grad():
            out = network(x)
        same = same_shifts(x)[0]
        assert same.sum() > 1 or "period 4" in name
        for dy, dx in same.nonzero().tolist():
            torch.testing.assert_close(out.roll((dy, dx), (-2, -1)), out, rtol=0, atol=1e-5 * float(out.abs().max()))


def test_plain_network_is_not_equivariant_to_shifts():
    torch.manual_seed(0)
    plain = UNet(2, 2, batch_norm=False, circular_padding=True, channels_per_scale=[4, 8])
    for parameter in plain.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    assert gap(plain, randn(1, 2, 8, 8)) > 1e-2


def test_smooth_images_and_lone_pixels():
    network, size = lively((4, 6, 8)), (16, 16)
    i, j = torch.meshgrid(*(torch.arange(n) for n in size), indexing="ij")
    blob = torch.exp(-((i - 5.3) ** 2 + (j - 7.9) ** 2) / 20).expand(1, 2, -1, -1)
    lone = torch.zeros(1, 2, *size)
    lone[..., 3, 6] = 1.0
    mirrored = blob + blob.flip(-1)
    for x in (blob, lone, 1 - lone, mirrored, 1 + 1e-3 * randn(1, 2, *size)):
        assert gap(network, x) < 1e-5


@pytest.mark.parametrize("places", [[(0, 0), (0, 7)], [(2, 1), (9, 6)], [(0, 0), (0, 5), (8, 0), (8, 5)], [(1, 1), (8, 1)]])
@pytest.mark.parametrize("seed", range(3))
def test_alike_objects_at_an_odd_distance_are_no_exception(places, seed):  # components of one norm that are no shifts
    x = torch.full((1, 2, 16, 16), 0.25)
    for row, column in places:
        x[:, :, row, column] = 1.0
    assert gap(lively((4, 6, 8), seed=seed), x) < 1e-5


def test_scale_of_the_image_does_not_matter_without_biases():
    network, x = lively((4, 6, 8)), randn(1, 2, 8, 8)
    for name, parameter in network.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.zeros_(parameter)
    for scale in (1e-15, 1e12):
        assert gap(network, scale * x) < 1e-5
        torch.testing.assert_close(network(scale * x) / scale, network(x), rtol=1e-4, atol=1e-5)


def test_images_of_a_batch_do_not_see_each_other():
    network = lively((4, 6, 8))
    x = torch.cat([randn(3, 2, 8, 8), *symmetric_images((8, 8)).values()])
    with torch.no_grad():
        together = network(x)
        alone = torch.cat([network(one[None]) for one in x])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)
    x[1] = torch.nan
    with torch.no_grad():
        broken = network(x)
    assert broken[1].isnan().all()
    torch.testing.assert_close(broken[[0, *range(2, len(x))]], alone[[0, *range(2, len(x))]], rtol=1e-5, atol=1e-5)


def reference(network, x):
    """Adaptive polyphase sampling scale by scale: sampled at a, remembered, and put back to a; one image (1, C, H, W)."""
    features, skips, places = x, [], []
    for block in network.encoder[:-1]:
        skips.append(block(features))
        pooled = torch.maximum(skips[-1], skips[-1].roll(-1, -2))
        pooled = torch.maximum(pooled, pooled.roll(-1, -1))  # the maximum of 2 x 2 at every pixel
        norms = {(a, b): float(skips[-1][..., a::2, b::2].norm()) for a in (0, 1) for b in (0, 1)}
        places.append(max(norms, key=norms.get))
        a, b = places[-1]
        features = pooled[..., a::2, b::2]
    features = network.encoder[-1](features)
    for i in reversed(range(len(skips))):
        up = features.new_zeros(*features.shape[:2], *skips[i].shape[-2:])
        a, b = places[i]
        up[..., a::2, b::2] = features  # remembered place
        up = up + up.roll(1, -2)
        up = up + up.roll(1, -1)  # each value twice along each axis, from there on
        features = network.decoder[i](torch.cat((skips[i], network.up[i](up)), 1))
    return x + network.last(features)


@pytest.mark.parametrize(("size", "widths"), [((8, 8), (4, 8)), ((8, 16), (4, 6, 8)), ((16, 8), (3, 4, 5, 6))])
def test_one_shift_of_the_image_is_sampling_at_the_remembered_places(size, widths):
    network = lively(widths)
    x = randn(6, 2, *size)
    with torch.no_grad():
        expected = torch.cat([reference(network, one[None]) for one in x])
        torch.testing.assert_close(network(x), expected, rtol=1e-5, atol=1e-5)
        assert len({tuple(one) for one in network.polyphase_offset(x).tolist()}) > 1


def test_network_is_the_plain_one_up_to_the_choice_of_samples():
    """The layers of deepinv's circular UNet, in order: what psi computes is the same to rounding."""
    network = lively((4, 6, 8))
    plain = UNet(2, 2, batch_norm=False, circular_padding=True, channels_per_scale=[4, 6, 8])
    theirs = [getattr(plain, f"Conv{i}") for i in (1, 2, 3)] + [plain.Up2, plain.Up3, plain.Up_conv2, plain.Up_conv3]
    ours = [*network.encoder, *network.up, *network.decoder]
    for target, source in zip([*theirs, plain.Conv_1x1], [*ours, network.last], strict=True):
        weights = zip(target.state_dict(), source.state_dict().values(), strict=True)
        target.load_state_dict(dict(weights))
    x = randn(2, 2, 8, 16)
    torch.testing.assert_close(network.psi(x), plain(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("widths", [(4, 8), (4, 6, 10), (2, 4, 8, 16)])
def test_weights_are_as_many_as_those_of_the_plain_network(widths):
    shapes = [sorted(tuple(p.shape) for p in make(3, widths).parameters()) for make in (shift_unet, unet)]
    assert shapes[0] == shapes[1]
    assert sum(p.numel() for p in shift_unet().parameters()) == sum(p.numel() for p in unet().parameters())


def test_gradients_reach_every_weight_and_the_image():
    network, x = lively((4, 6, 8)), randn(2, 2, 8, 8).requires_grad_()
    network(x).square().mean().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in network.parameters())
    assert x.grad.isfinite().all()


def test_gradient_is_equivariant_too():
    """The choice of samples has no derivative: J(T x)^T T v = T J(x)^T v, and that of the weights is the same."""
    network, group, g = lively((4, 6, 8)).double(), Shifts((8, 8)), torch.tensor([[3, 5]])
    x, v = (randn(1, 2, 8, 8, seed=seed, dtype=torch.float64) for seed in (0, 1))
    of_image, of_weights = [], []
    for image, direction in ((x, v), (group.apply(x, g), group.apply(v, g))):
        network.zero_grad()
        leaf = image.clone().requires_grad_()
        (network(leaf) * direction).sum().backward()
        of_image.append(leaf.grad)
        of_weights.append([p.grad.clone() for p in network.parameters()])
    torch.testing.assert_close(of_image[1], group.apply(of_image[0], g), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(*of_weights, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["rows", "constant", "diagonal"])
def test_gradient_of_the_weights_does_not_see_how_a_tie_is_broken(name):
    network, group = lively((4, 6, 8)).double(), Shifts((8, 8))
    x, v = symmetric_images((8, 8))[name].double(), randn(1, 2, 8, 8, dtype=torch.float64)
    gradients = []
    for g in (torch.tensor([[0, 0]]), torch.tensor([[3, 5]])):
        network.zero_grad()
        (network(group.apply(x, g)) * group.apply(v, g)).sum().backward()
        gradients.append([p.grad.clone() for p in network.parameters()])
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-9)


def test_derivatives_are_those_of_finite_differences():
    network, x = lively((2, 3)).double(), randn(2, 2, 4, 4, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(network, (x,), fast_mode=True)
    assert torch.autograd.gradcheck(wrap, (x,))
    assert torch.autograd.gradgradcheck(lambda one: wrap(one).square(), (x,), fast_mode=True)
    still = torch.ones(2, 1, 4, 4, dtype=torch.float64)
    still[1] = randn(4, 4)
    assert torch.autograd.gradcheck(lambda one: keep_symmetry(one, still), (x,))


@pytest.mark.parametrize("size", [(1, 1), (1, 4), (2, 3), (5, 4)])
def test_padding_is_cyclic(size):
    x = randn(2, 3, *size)
    assert torch.equal(wrap(x), torch.nn.functional.pad(x, (1, 1, 1, 1), mode="circular"))
    last = x.contiguous(memory_format=torch.channels_last)
    assert torch.equal(wrap(last), wrap(x))


def test_padding_keeps_the_memory_format():
    x = randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    assert wrap(x).is_contiguous(memory_format=torch.channels_last)


def test_strongest_component_is_chosen_for_each_item():
    x = randn(4, 3, 6, 4)
    for i, (a, b) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1)]):
        x[i, :, a::2, b::2] *= 3
    assert strongest_component(x).tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]


def test_shifts_that_leave_an_image_unchanged_are_found_to_rounding():
    size = (8, 12)
    rows = randn(1, 1, 8, 1).expand(-1, -1, -1, 12) + 5
    for image, count in ((rows, 12), (randn(1, 1, *size), 1), (torch.zeros(1, 1, *size), 96), (rows + 1e-3 * randn(*size), 1)):
        for scale in (1e-12, 1.0, 1e12):
            noisy = scale * image * (1 + 1e-7 * randn(*size, seed=3))
            assert same_shifts(noisy).sum() == count


def test_mean_over_the_symmetry_is_that_of_the_moved_images():
    x, u = randn(1, 1, 4, 3).repeat(1, 1, 2, 2), randn(1, 2, 8, 6)
    expected = torch.stack([u.roll((dy, dx), (-2, -1)) for dy in (0, 4) for dx in (0, 3)]).mean(0)
    torch.testing.assert_close(keep_symmetry(u, x), expected)
    assert torch.equal(keep_symmetry(u, randn(1, 1, 8, 6)), u)


def test_compiled_network_is_one_graph_with_the_same_numbers(unchecked, monkeypatch):
    for name in ("forward", "setup_context", "backward"):  # checks in a function of autograd can't be compiled
        monkeypatch.setattr(shifts._Roll, name, staticmethod(getattr(shifts._Roll, name).__wrapped__))
    torch.manual_seed(0)
    network, x = shift_unet(2, (2, 3)), torch.cat([torch.randn(2, 2, 8, 8), torch.ones(1, 2, 8, 8)])
    compiled = torch.compile(network, backend="aot_eager", fullgraph=True, dynamic=False)
    outputs, gradients = [], []
    for run in (network, compiled):
        network.zero_grad()
        outputs.append(run(x))
        outputs[-1].square().sum().backward()
        gradients.append([p.grad.clone() for p in network.parameters()])
    torch.testing.assert_close(*outputs, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)


def test_nothing_is_read_back_from_the_device():
    """On the meta device no value exists: what would make a GPU wait fails, and so does a tensor made elsewhere."""
    network, x = shift_unet(2, (4, 6, 8)).to("meta"), torch.empty(2, 2, 8, 8, device="meta", requires_grad=True)
    network(x).square().mean().backward()
    assert x.grad.shape == x.shape


@pytest.mark.parametrize("channels_last", [True, False])
def test_accelerated_network_stays_equivariant(channels_last):
    network = Accelerated(lively((4, 6, 8)), autocast=False, channels_last=channels_last)
    assert gap(network, randn(1, 2, 8, 16)) < 1e-5


def test_bfloat16_is_equivariant_to_its_own_rounding():
    network = Accelerated(lively((4, 6, 8)))
    assert gap(network, randn(1, 2, 8, 16)) < 0.05
    assert network(torch.ones(1, 2, 8, 8)).std((-2, -1)).max() < 1e-5


@pytest.mark.parametrize(("size", "scales", "way_out"), [
    ((28, 28), 4, "28 x 28.*4 scales.*divisible by 8: give at most 3 widths"),
    ((16, 20), 4, "16 x 20.*divisible by 8: give at most 3 widths"),
    ((6, 8), 3, "6 x 8.*divisible by 4: give at most 2 widths"),
    ((7, 8), 2, "7 x 8.*divisible by 2: crop to even sides"),
])  # fmt: skip
def test_sides_that_do_not_fit_are_refused_with_the_way_out(size, scales, way_out):
    with pytest.raises(ValueError, match=way_out):
        shift_unet(1, (2,) * scales)(torch.zeros(1, 1, *size))


def test_twenty_eight_pixels_take_three_scales():
    assert gap(lively((3, 4, 5), channels=1), randn(1, 1, 28, 28)) < 1e-5


@pytest.mark.parametrize("widths", [(), (4,)])
def test_one_scale_is_no_unet(widths):
    with pytest.raises(ValueError, match="at least two scales"):
        shift_unet(2, widths)
