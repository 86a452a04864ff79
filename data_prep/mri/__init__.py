"""Prepare fastMRI volumes and ISMRMRD raw files.

Start reading at `fastmri.py`, the command; `recorded.py` checks k-space that a scanner recorded, `recording.py` prepares it.
"""
