from es_medical.benchmark import draw as module
from es_medical.benchmark.__main__ import main
from es_medical.synthetic import KINDS


def test_every_kind_is_drawn_and_printed(monkeypatch, capsys):
    monkeypatch.setattr(module, "SIZES", {16: 2})
    main(["draw", "--repeats", "1"])
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.split()[0] for line in lines] == list(KINDS)
    assert all(line.endswith("images/s") for line in lines)
