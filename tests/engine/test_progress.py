"""How far an engine is: bars in a terminal, lines elsewhere."""

import io
import logging
import sys

import pytest
from ignite.engine import Engine

from es_medical.engine import progress
from es_medical.engine.progress import Progress

logger = logging.getLogger("es_medical.test")


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch, caplog):
    """Makes a terminal, to which the package's logger writes too; within the test, as pytest replaces stdout before it."""
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    handler, package = logging.StreamHandler(stream), logging.getLogger("es_medical")
    monkeypatch.setattr(package, "handlers", [handler])
    caplog.set_level("INFO", logger="es_medical")

    def make():
        monkeypatch.setattr(sys, "stdout", stream)
        return stream, handler

    return make


def engine(step, title):
    made = Engine(step)
    Progress(made, title)
    return made


def test_without_a_terminal_a_line_says_what_is_left(monkeypatch, caplog):
    monkeypatch.setattr(progress, "INTERVAL", 0.0)
    with caplog.at_level("INFO", logger="es_medical"):
        engine(lambda engine, batch: None, "reconstruction").run([0, 1, 2])
    said = [record.message for record in caplog.records]
    assert said == [f"reconstruction: {done} of 3, about 0 s left" for done in (1, 2)]  # nothing is left after the third


def test_a_terminal_has_a_bar_for_each_running_engine_and_log_lines_above(terminal):
    stream, handler = terminal()
    inner = engine(lambda engine, batch: logger.info("a line"), "validation")
    outer = engine(lambda engine, batch: inner.run([0]) and None, "training")
    outer.run([0, 1])
    shown = stream.getvalue()
    assert "training" in shown
    assert "validation" in shown
    assert shown.count("a line\n") == 2
    assert handler.stream is stream
    assert progress._bars._progress is None


def test_an_error_takes_the_bar_away_and_is_raised(terminal):
    stream, handler = terminal()

    def fail(engine, batch):
        raise FloatingPointError("not finite")

    with pytest.raises(FloatingPointError, match="not finite"):
        engine(fail, "training").run([0])
    assert "training" in stream.getvalue()
    assert progress._bars._progress is None
    assert handler.stream is stream
