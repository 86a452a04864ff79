# %% [markdown]
# # Reading a diagnosis
#
# What an operator A does not measure can be learnt without ground truth only if A T_g measures it for some transformation T_g
# of the image. That depends on A and the transformations alone, so it is checked before any training, and without data. [Can
# I train without ground truth?](../can_i_train.md) has the theory and more examples.

# %%
import deepinv
import torch

import es_medical as es

SETS = ("flips", "d4", "shifts")

# %% [markdown]
# ## MRI, one line in four: D4 adds lines in the other direction
# *Rank* is the share of the image that some A T_g measures. The operator alone has 25 %, its lines. A shift changes only the
# phase of k-space: it maps what A sees onto itself ("the same") and teaches nothing. Flips add the mirror image of each line
# that is not measured already, D4 also vertical lines. What is left out of reach lies in the corners of k-space.

# %%
mri = es.diagnose_operator(es.MRI(es.gaussian_line_mask(32, 4, 0.1, seed=0), (32, 32)), actions=SETS)
print(mri)
assert mri.diagnosis.best.action == "d4"

# %% [markdown]
# ## Every other column of an image: full rank, and still blind
# All shifts together measure every column: rank 100 %. But an even and an odd column are never measured together, so that
# given one no split asks for the other. *Seen in pairs* is 50 %, the advice is to measure columns at random places.

# %%
columns = torch.arange(32) % 2 == 0
camera = es.diagnose_operator(es.Inpainting(columns, (32, 32)), actions=SETS)
print(camera)
assert camera.diagnosis.of("shifts").joint < 0.6

# %% [markdown]
# ## A circular blur: no group helps
# Blurring commutes with shifts, flips and rotations: every A T_g misses the same frequencies. Splitting can denoise here, and
# what is missing comes from the network's prior.

# %%
kernel = deepinv.physics.functional.gaussian_blur(sigma=(2.0, 2.0))
blur = es.MaskedPhysics(deepinv.physics.BlurFFT((1, 24, 24), filter=kernel))
blurred = es.diagnose_operator(blur, actions=SETS)
print(blurred)
assert blurred.diagnosis.best is None

# %% [markdown]
# ## What to do with it
# - *Best to train with* names the group: give it to `ReynoldsAveraging`, or as `group:` of a bundle.
# - Less than 1 % of gain: train with another group, or change the acquisition as the advice says.
# - `images=` adds *energy lost*: how much of your images lies out of reach.
