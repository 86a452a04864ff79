# %% [markdown]
# # Your own operator: a blur with missing pixels
#
# `MaskedPhysics(A, mask)` makes any `deepinv.physics.LinearPhysics` A an operator that can be split, y = M A x. Here a
# microscope blurs, and 60 % of its detector is dead. The image of stained tissue comes with scikit-image.

# %%
import os

import deepinv
import torch
from skimage.data import immunohistochemistry

import es_medical as es

EPOCHS = int(os.environ.get("EPOCHS", "5"))  # half a minute on one CPU core

# %% [markdown]
# ## Operator and measurements

# %%
kernel = deepinv.physics.functional.gaussian_blur(sigma=(0.7, 0.7))
mask = torch.rand(32, 32, generator=torch.Generator().manual_seed(0)) < 0.4
physics = es.MaskedPhysics(deepinv.physics.Blur(kernel, padding="circular"), mask, img_size=(1, 32, 32))

image = torch.tensor(immunohistochemistry()[..., 1] / 255).float()
x = image.unfold(0, 32, 32).unfold(1, 32, 32).reshape(-1, 1, 32, 32)  # 16 rows of 16 fields of view
y = es.measure(physics, x, sigma=0.01, generator=torch.Generator().manual_seed(0))
y_train, y_test, x_test = y[:192], y[224:], x[224:]  # the two rows between them are for validation

# %% [markdown]
# ## What can it learn?
# The group must show pixels that the operator misses; the diagnosis says so before any training. It needs no images: those
# given here only tell how much of their energy is out of reach.

# %%
print(es.diagnose_operator(physics, x[:192:16], actions=("flips", "d4")))

# %% [markdown]
# ## Training

# %%
torch.manual_seed(0)
split = es.Split("pixels", split_ratio=0.8)
network = es.ReynoldsAveraging(es.MoDL(es.unet(1, (16, 32), zero_residual=True), 2, start="estimate"), es.D4())
loss = es.EquivariantSplitting(split, sigma=0.01)
optimizer = torch.optim.Adam(network.parameters(), lr=2e-3)
for _epoch in range(EPOCHS):
    for items in torch.randperm(len(y_train)).split(8):
        optimizer.zero_grad()
        loss(network, es.Batch(y_train[items], physics)).total.mean().backward()
        optimizer.step()

# %% [markdown]
# ## Comparison
# ES starts from smooth least squares, which is good here (33 dB); half a minute of training adds nothing to it. What training
# adds where there is more to learn: [results](../results.md).

# %%
inferer = es.Inferer(split, sigma=0.01, group=es.D4(), eval_split_input=False)
result = inferer(network.eval(), es.Batch(y_test, physics))
found = {
    "adjoint": physics.A_adjoint(y_test),
    "smooth least squares": physics.estimate(y_test),
    "total variation": es.TotalVariation(weight=1e-3)(y_test, physics),
    "ES": result.image,
}
scores = {name: float(es.psnr(image, x_test, data_range=1).mean()) for name, image in found.items()}
print(*(f"{name:22}{score:.1f} dB" for name, score in scores.items()), sep="\n")
print(f"held-out error of ES {float(result.heldout.mean()):.4f}")

# %% [markdown]
# ## As a bundle
# A file of the measurements and the lines of [own_operator.yaml](own_operator.yaml) give the same training with checkpoints,
# validation, MLflow and several GPUs; [Your own operator as a bundle](../own_operator.md) has the commands.

# %%
splits = ["train"] * 192 + ["val"] * 32 + ["test"] * 32
es.write_slices("tissue.h5", physics, y, splits, images=x, sigma=0.01)
