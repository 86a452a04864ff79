# %% [markdown]
# # Your own network: deepinv's DRUNet, MONAI's UNet
#
# `MoDL` unrolls any module from images to images of the same shape, and `ReynoldsAveraging` makes the whole equivariant. A
# network that takes the operator itself, f(y, physics), goes into `ReynoldsAveraging` directly (the tutorial with deepinv
# does so).

# %%
import os

import deepinv
import torch
from monai.networks.nets import UNet
from skimage.data import microaneurysms

import es_medical as es

EPOCHS = int(os.environ.get("EPOCHS", "10"))  # half a minute on one CPU core

# %% [markdown]
# ## Measurements
# A photograph of a retina (scikit-image ships it), of which a random half of the pixels is missing.

# %%
image = torch.tensor(microaneurysms()[:96, :96] / 255).float()
x = image.unfold(0, 32, 16).unfold(1, 32, 16).reshape(-1, 1, 32, 32)
mask = torch.rand(32, 32, generator=torch.Generator().manual_seed(0)) < 0.5
physics = es.Inpainting(mask, size=(32, 32))
y = es.measure(physics, x, sigma=0.01, generator=torch.Generator().manual_seed(0))

# %% [markdown]
# ## Three denoisers
# deepinv's DRUNet takes a noise level as its second argument: give it to `MoDL`.

# %%
torch.manual_seed(0)
drunet = deepinv.models.DRUNet(1, 1, nc=(8, 16, 16, 16), nb=1, pretrained=None)
monai_unet = UNet(spatial_dims=2, in_channels=1, out_channels=1, channels=(8, 16), strides=(2,), num_res_units=1)
unrolled = {
    "DRUNet (deepinv)": es.MoDL(drunet, 2, step=10, noise_level=0.05, start="estimate"),
    "UNet (MONAI)": es.MoDL(monai_unet, 2, step=10, start="estimate"),
    "unet (es_medical)": es.MoDL(es.unet(1, (8, 16), zero_residual=True), 2, step=10, start="estimate"),
}

# %% [markdown]
# ## One training for all
# The loss sees `y` alone, so the pictures that it is scored on may be those it is trained on.

# %%
loss = es.EquivariantSplitting(es.Split("pixels", split_ratio=0.8), sigma=0.01)
found = {"smooth least squares": physics.estimate(y), "total variation": es.TotalVariation(weight=3e-3)(y, physics)}
for name, network in unrolled.items():
    averaged = es.ReynoldsAveraging(network, es.D4())
    optimizer = torch.optim.Adam(averaged.parameters(), lr=2e-3)
    for _epoch in range(EPOCHS):
        for items in torch.randperm(len(y)).split(4):
            optimizer.zero_grad()
            loss(averaged, es.Batch(y[items], physics)).total.mean().backward()
            optimizer.step()
    with torch.no_grad():
        found[name] = averaged.eval()(y, physics)

# %% [markdown]
# ## Comparison

# %%
scores = {name: float(es.psnr(image, x, data_range=1).mean()) for name, image in found.items()}
print(*(f"{name:22}{score:.1f} dB" for name, score in scores.items()), sep="\n")
