"""The run-time type checker of the tests: beartype, which accepts integers for floats, as mypy does."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
