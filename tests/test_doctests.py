"""The examples in docstrings are run."""

import doctest
import importlib
import pkgutil

import pytest

import actors
import domain
import stores

MODULES = [
    f"{package.__name__}.{module.name}"
    for package in (actors, domain, stores)
    for module in pkgutil.iter_modules(package.__path__)
    if module.name != "__main__"
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_are_true(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name), raise_on_error=True).failed == 0


def test_the_policies_have_examples() -> None:
    for name in ("domain.retry", "domain.journal", "domain.state", "domain.waits"):
        assert doctest.testmod(importlib.import_module(name)).attempted > 0
