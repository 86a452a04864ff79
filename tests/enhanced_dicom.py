"""An enhanced multi-frame image made of classic ones: with functional groups, shared and of each frame."""

from pydicom import Dataset, uid

GROUPS = {
    "PixelMeasuresSequence": ("PixelSpacing", "SliceThickness"),
    "PlaneOrientationSequence": ("ImageOrientationPatient",),
    "PlanePositionSequence": ("ImagePositionPatient",),
    "PixelValueTransformationSequence": ("RescaleSlope", "RescaleIntercept", "RescaleType"),
}
SOP = {"CT": uid.EnhancedCTImageStorage, "MR": uid.EnhancedMRImageStorage}


def enhanced(images, content=({},), shared=("PixelMeasuresSequence", "PlaneOrientationSequence")):
    """The images as frames of the first one; `content` holds elements of the FrameContentSequence of each frame."""
    whole = images[0]
    moved = {name for names in GROUPS.values() for name in names}
    own = [Dataset() for _ in images]
    common = Dataset()
    for name, elements in GROUPS.items():
        for image, groups in zip(images, own, strict=True):
            item = Dataset()
            item.update({image[key].tag: image[key] for key in elements if key in image})
            setattr(common if name in shared else groups, name, [item])
    for groups, values in zip(own, [*content] if len(content) > 1 else [content[0]] * len(images), strict=True):
        item = Dataset()
        for key, value in values.items():
            setattr(item, key, value)
        groups.FrameContentSequence = [item]
    kind = Dataset()
    kind.FrameType = whole.ImageType
    setattr(common, f"{whole.Modality}ImageFrameTypeSequence", [kind])
    pixels = b"".join(image.PixelData for image in images)
    for name in moved & set(whole.dir()):
        delattr(whole, name)
    whole.SOPClassUID = SOP[whole.Modality]
    if hasattr(whole, "file_meta"):
        whole.file_meta.MediaStorageSOPClassUID = whole.SOPClassUID
    whole.NumberOfFrames, whole.PixelData = len(images), pixels
    whole.SharedFunctionalGroupsSequence, whole.PerFrameFunctionalGroupsSequence = [common], own
    return whole
