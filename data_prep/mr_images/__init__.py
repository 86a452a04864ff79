"""MR images of any archive (NIfTI, NRRD, MetaImage), as slices with simulated k-space.

Start reading at `archive.py`.
"""
