"""Interface of groups of image transformations T_g."""

from abc import ABC, abstractmethod
from typing import Protocol, runtime_checkable

import torch

from es_medical.types import Elements, Generator, Image


@runtime_checkable
class Transform(Protocol):
    """Random transformations T_g of images, all that equivariant imaging needs: any `Group`, or interpolated rotations."""

    def sample(self, n: int, generator: Generator | None, device: torch.device | str = "cpu") -> Elements:
        """Draw n elements uniformly and independently."""

    def apply(self, x: Image, g: Elements) -> Image:
        """Return T_g x, item by item; x is (B, C, H, W), g is (B, ...)."""


class Group(ABC):
    """A finite group of orthogonal, grid-preserving transformations T_g of images (Assumption 1 of the paper).

    Elements are integer tensors whose first axis is the batch: each item of a batch has its own g.
    """

    order: int
    """Number of elements."""

    @abstractmethod
    def elements(self) -> Elements:
        """Return all elements, identity first, shape (order, ...)."""

    @abstractmethod
    def sample(self, n: int, generator: Generator | None, device: torch.device | str = "cpu") -> Elements:
        """Draw n elements uniformly and independently."""

    @abstractmethod
    def apply(self, x: Image, g: Elements) -> Image:
        """Return T_g x, item by item; x is (B, C, H, W), g is (B, ...)."""

    @abstractmethod
    def inverse(self, x: Image, g: Elements) -> Image:
        """Return T_g^-1 x, which is also the adjoint T_g^T x."""

    @abstractmethod
    def compose(self, g: Elements, h: Elements) -> Elements:
        """Return the element gh, for which T_gh = T_g T_h."""

    @abstractmethod
    def check(self, size: tuple[int, int]) -> None:
        """Raise ValueError when the group does not act on images of `size` (H, W)."""
