"""fastMRI volumes and ISMRMRD raw files.

Start reading at `fastmri.py`, the command; `recorded.py` is what is done to k-space that a scanner recorded.
"""
