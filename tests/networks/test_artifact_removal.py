import pytest
import torch
from helpers import randn, rng

from es_medical.networks import ArtifactRemoval, unet
from es_medical.physics.compressed_sensing import CompressedSensing, gaussian_matrix


def test_start_is_the_adjoint_or_the_pseudo_inverse():
    physics, phi = CompressedSensing(gaussian_matrix(29, 96, seed=0), (8, 12)), unet(1, (4, 8))
    y = physics.A(randn(2, 1, 8, 12))
    torch.testing.assert_close(ArtifactRemoval(phi)(y, physics), phi(physics.A_adjoint(y)))
    torch.testing.assert_close(ArtifactRemoval(phi, "pseudo_inverse")(y, physics, rng()), phi(physics.A_dagger(y)))
    assert (physics.A_adjoint(y) - physics.A_dagger(y)).abs().max() > 0.1


@pytest.mark.usefixtures("unchecked")
def test_unknown_start_is_refused():
    with pytest.raises(ValueError, match="start must be adjoint or pseudo_inverse, got 'zero'"):
        ArtifactRemoval(unet(1, (2, 4)), "zero")
