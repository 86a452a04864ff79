import torch
from fuzzing import fuzz
from hdf5_mutants import hdf5_mutants, write_mutant

from es_medical.data import Shapes, SliceDataset, SliceHeader, SliceRecord, SliceWriter, read_header

SIZE = (16, 12)
NAMES = ("measurement", "image", "maps", "mask", "id", "subject", "volume", "split", "scale", "spacing", "data_range", "slice")
NAMES += ("sigma", "peak", "position", "orientation", "slice_spacing")
ATTRIBUTES = (
    "schema",
    "modality",
    "tool_version",
    "seed",
    "sigma",
    "acceleration",
    "center_fraction",
    "digest",
    "encoded_lines",
)
ATTRIBUTES += ("size", "channels", "configuration", "source_digests", "operator")


def slices(path):
    generator = torch.Generator().manual_seed(0)
    header = SliceHeader(sigma=float("nan"), mask=torch.arange(SIZE[1]) % 2 == 0, acceleration=2.0, center_fraction=0.1)
    with SliceWriter(path, header, SIZE, True, 2, Shapes.kspace(SIZE, 2)) as writer:
        for i in range(3):
            measured, maps = torch.randn(2, 2, 2, *SIZE, generator=generator)
            image = torch.randn(2, *SIZE, generator=generator)
            split = ("train", "val", "test")[i]
            writer.append(SliceRecord(measured, image, f"{i:016x}", f"{i:016x}", split, sigma=0.1, maps=maps, slice=i))
    return path.read_bytes()


def test_slice_file_gives_items_of_the_shapes_in_its_header_or_a_stated_error(tmp_path):
    path = tmp_path / "slices.h5"
    content = slices(path)

    def slice_file(mutant):
        write_mutant(path, content, mutant)
        header = read_header(path)
        assert sum(header.splits.values()) == header.n
        for item in SliceDataset(path):
            assert item["measurement"].shape == (2, header.coils, *header.size) or not header.coils
            assert item["measurement"].dtype == torch.float32
            assert item["measurement"].shape[-1] == header.mask.shape[-1]
            if "image" in item:
                assert item["image"].shape == (header.channels, *header.size)
                assert item["image"].dtype == torch.float32
            assert all(isinstance(item[name], torch.Tensor) and item[name].ndim == 0 for name in ("sigma", "peak", "scale"))

    fuzz(hdf5_mutants(content, NAMES, ATTRIBUTES), slice_file, (ValueError, FileNotFoundError), 200)
