import warnings
from functools import partial

import pytest
import torch
from deepinv.models import DnCNN
from helpers import line_mri, randn, rng
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.exc import InductorError

from es_medical.engine.step import Pass, training_step
from es_medical.groups import D4, FineRotations
from es_medical.losses import build_loss
from es_medical.networks import Accelerated, MoDL, ReynoldsAveraging, unet
from es_medical.physics import Batch
from es_medical.splits import Split


@pytest.mark.parametrize("widths", [(4, 8), (4, 6, 10), (2, 4, 8, 16)])
def test_widths_are_those_asked_for(widths):
    weights = unet(2, widths).state_dict()
    assert sorted({len(w) for w in weights.values() if w.ndim == 4} - {2}) == sorted(set(widths) - {2})
    assert [weights[f"Conv{i + 1}.0.weight"].shape[0] for i in range(len(widths))] == list(widths)


def test_paper_network_has_four_scales_bias_and_no_normalisation():
    network = unet()
    names = [type(one).__name__ for one in network.modules()]
    assert not any("Norm" in name for name in names)
    assert all(one.bias is not None for one in network.modules() if isinstance(one, torch.nn.Conv2d))
    assert [network.state_dict()[f"Conv{i}.0.weight"].shape[0] for i in range(1, 5)] == [64, 128, 256, 512]


@pytest.mark.parametrize("size", [(8, 8), (7, 9), (13, 6), (3, 5)])
def test_any_image_size(size):
    x = randn(2, 2, *size)
    assert unet(2, (2, 4, 8))(x).shape == x.shape


@pytest.mark.parametrize("channels_last", [True, False])
def test_accelerated_without_autocast_equals_the_plain_denoiser(channels_last):
    torch.manual_seed(0)
    plain, x = unet(2, (4, 8)), randn(2, 2, 8, 8)
    expected = plain(x)
    found = Accelerated(plain, autocast=False, channels_last=channels_last)(x)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_accelerated_switched_off_is_bitwise_the_plain_denoiser():
    torch.manual_seed(0)
    plain, x = unet(2, (4, 8)), randn(2, 2, 8, 8)
    assert torch.equal(Accelerated(plain, autocast=False, channels_last=False)(x), plain(x))


def test_autocast_is_bfloat16_inside_and_float32_outside():
    torch.manual_seed(0)
    plain, x, seen = unet(2, (4, 8)), randn(2, 2, 8, 8), []
    plain.Conv_1x1.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    expected = plain(x)
    network = Accelerated(plain)
    found = network(x)
    assert seen == [torch.float32, torch.bfloat16]
    assert found.dtype == torch.float32
    assert 0 < (found - expected).abs().max() < 0.02 * expected.abs().max()
    found.square().mean().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in network.parameters())


def test_accelerated_passes_the_noise_level_on():
    class Scale(torch.nn.Module):
        def forward(self, x, sigma):
            return x * sigma

    x = randn(1, 2, 4, 4)
    assert torch.equal(Accelerated(Scale(), autocast=False)(x, 0.5), x * 0.5)
    MoDL(Accelerated(DnCNN(2, 2, depth=2, nf=4, pretrained=None)), noise_level=0.1)


def test_checkpoints_pass_between_the_plain_and_the_accelerated_network():
    def networks():
        return [ReynoldsAveraging(MoDL(one), D4()) for one in (unet(2, (4, 8)), Accelerated(unet(2, (4, 8)), autocast=False))]

    plain, fast = networks()
    assert list(fast.state_dict()) == list(plain.state_dict())
    for target, source in ((fast, plain), networks()):
        target.load_state_dict(source.state_dict())
        torch.testing.assert_close(dict(target.state_dict()), dict(source.state_dict()), rtol=0, atol=0)
    shapes = [[p.shape for p in one.parameters()] for one in (plain, fast)]
    assert shapes[0] == shapes[1]  # and so do those of the optimiser, which go by order


def test_checkpoint_of_another_network_is_refused():
    with pytest.raises(RuntimeError, match="Conv1"):
        Accelerated(unet(2, (4, 8))).load_state_dict(unet(2, (6, 8)).state_dict())
    incomplete = unet(2, (4, 8)).state_dict()
    incomplete.pop("Conv1.0.weight")
    with pytest.raises(RuntimeError, match="Missing key"):
        Accelerated(unet(2, (4, 8))).load_state_dict(incomplete)


@pytest.fixture
def quick(monkeypatch):
    """Trace and differentiate as torch.compile does, without the C++ compiler, which takes half a minute."""
    plain = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model, mode=None, **given: plain(model, backend="aot_eager", **given))
    yield
    torch.compiler.reset()


def steps(method, compiled, n=3):
    """Losses and gradients of n steps at one set of weights, whose draws come from one generator."""
    torch.manual_seed(0)
    physics, x = line_mri((16, 16)), randn(2, 2, 16, 16)
    f = ReynoldsAveraging(MoDL(Accelerated(unet(2, (2, 4)), False, False, compiled), 2), D4()).train()
    loss, generator = build_loss(method, Split(), 0.1, transform=FineRotations()), rng(3)
    optimizer, found = torch.optim.SGD(f.parameters(), lr=0.0), []
    for _ in range(n):
        output = training_step(loss, f, optimizer, [Pass(Batch(physics.A(x), physics), generator)], clip=None)
        found.append(torch.cat([output["loss"][None], *(p.grad.flatten().clone() for p in f.parameters())]))
    return torch.stack(found)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # torch looks at inputs while it traces
@pytest.mark.parametrize("method", ["es", "ei_alternating"])
def test_compiled_steps_have_the_losses_gradients_and_new_draws_of_plain_ones(quick, method):
    """Splits, noise, g and the coin of alternating EI are drawn outside of the compiled denoiser: nothing is frozen."""
    plain, compiled = steps(method, False), steps(method, True)
    torch.testing.assert_close(compiled, plain, rtol=1e-4, atol=1e-5)
    assert len(set(compiled[:, 0].tolist())) == len(compiled)


def test_cuda_graphs_without_a_gpu_are_told_once_and_change_nothing(quick):
    network, x = Accelerated(unet(2, (2, 4)), False, False, "reduce-overhead"), randn(1, 2, 8, 8)
    with pytest.warns(UserWarning, match="torch makes no CUDA graph of the denoiser on cpu: it is compiled without"):
        found = network(x)
    torch.testing.assert_close(found, network.denoiser._call_impl(x))
    network(x)


def test_a_denoiser_that_does_not_compile_runs_uncompiled_with_a_warning(monkeypatch):
    def broken(graph, inputs):
        raise RuntimeError("no compiler\nand more")

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=broken))
    monkeypatch.setattr(torch, "compile", lambda model, mode=None, plain=torch.compile, **given: plain(model, **given))
    network, x = Accelerated(unet(2, (2, 4)), False, False, True), randn(1, 2, 8, 8)
    with pytest.warns(UserWarning, match="torch.compile failed, the denoiser runs uncompiled: BackendCompilerFailed"):
        found = network(x)
    assert torch.equal(found, network.denoiser(x))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        network(x)
    torch.compiler.reset()


def test_a_backward_pass_that_does_not_compile_runs_uncompiled_with_a_warning(monkeypatch):
    """Until then neither weights nor random numbers have changed; the gradients are those of the plain denoiser."""

    def broken(graph, inputs):
        raise InductorError(RuntimeError("no memory"), None)

    backend = aot_autograd(fw_compiler=lambda graph, inputs: graph.forward, bw_compiler=broken)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    monkeypatch.setattr(torch, "compile", lambda model, mode=None, plain=torch.compile, **given: plain(model, **given))
    dropout = torch.nn.Sequential(torch.nn.Conv2d(2, 2, 3, padding=1), torch.nn.Dropout())
    network, x, random = Accelerated(dropout, False, False, True), randn(1, 2, 8, 8), torch.get_rng_state()
    with pytest.warns(UserWarning, match="torch.compile failed, the denoiser runs uncompiled: InductorError: .*no memory"):
        found = network(x)
    found.sum().backward()
    assert all(p.grad is not None for p in network.parameters())
    torch.set_rng_state(random)
    assert torch.equal(found, dropout._call_impl(x))
    torch.compiler.reset()


def test_an_error_of_the_denoiser_itself_is_raised(quick):
    with pytest.raises(RuntimeError, match="channels"):
        Accelerated(unet(2, (2, 4)), False, False, True)(randn(1, 3, 8, 8))


@torch._dynamo.config.patch(recompile_limit=2)  # pytest's monkeypatch would leave torch without a limit
def test_more_kinds_of_batches_than_torch_compiles_are_told(quick):
    network = Accelerated(torch.nn.Conv2d(2, 2, 3, padding=1), False, False, True)
    network(randn(1, 2, 8, 8))
    network(randn(2, 2, 8, 8))
    with pytest.warns(UserWarning, match="more than 2 kinds of batches"):
        network(randn(3, 2, 8, 8))


def test_another_mode_is_refused():
    with pytest.raises(ValueError, match="compiled must be true, false, null or reduce-overhead, got 'fast'"):
        Accelerated(unet(2, (2, 4)), compiled="fast")
