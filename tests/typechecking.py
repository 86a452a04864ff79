"""The run-time type checker of the tests: beartype, with integers accepted where a float is asked for, as mypy does."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
