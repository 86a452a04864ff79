"""Prepare photographs (inpainting) and digits (compressed sensing).

Start reading at `div2k.py` and `mnist.py`, the commands.
"""
