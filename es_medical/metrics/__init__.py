from es_medical.metrics.equivariance import equivariance
from es_medical.metrics.heldout import heldout_error
from es_medical.metrics.image import MAX_DB, magnitude, psnr, ssim, volume_psnr

__all__ = ["MAX_DB", "equivariance", "heldout_error", "magnitude", "psnr", "ssim", "volume_psnr"]
