"""Procedural images to train on before any measurement: no real image and no ground truth is in them."""

from es_medical.synthetic.kinds import KINDS, draw

__all__ = ["KINDS", "draw"]
