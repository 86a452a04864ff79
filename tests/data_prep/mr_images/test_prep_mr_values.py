import numpy as np
from mr_volumes import head, write_nifti


def test_value_that_single_precision_cannot_hold_is_refused_and_gives_no_nan(tmp_path, prep):
    for name, value in (("good", 100.0), ("bad", 3e38), ("worse", -3e38)):
        voxels = head().astype(np.float32)
        voxels[voxels.shape[0] // 2] = value
        write_nifti(tmp_path / "in" / f"{name}.nii", voxels)
    output = prep("mr", tmp_path / "in", tmp_path / "a.h5", code=1).output
    assert output.count("values up to 3e+38: expected 1e+30 at most") == 2
    assert "done 1 · skipped 0 · failed 2" in output
