"""Training: one step, the MONAI engines around it, checkpoints and the factories of a bundle. Start reading at `step.py`.

`trainer.py` and `evaluator.py` are the engines, `checkpoint.py` and `weights/` save weights and states, `setup.py` and
`operators.py` have the factories that the bundles name, `config.py` checks their knobs. `es_medical.jobs` builds whole jobs
from these.
"""
