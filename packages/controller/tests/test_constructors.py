"""One state, built once: parts of the controller are given it, and few others."""

import dataclasses
import enum
import importlib
import inspect
import pkgutil

import tailrace.controller as package

MOST, MOST_TOGETHER = 4, 60


def constructors():
    """The names of the arguments of each class's constructor; of a record's only those that are objects of the controller."""
    found = [info.name for info in pkgutil.walk_packages(package.__path__, package.__name__ + ".")]
    names = [name for name in found if not name.startswith(package.__name__ + ".policies")]
    modules = [importlib.import_module(name) for name in names]
    classes = [one for module in modules for one in vars(module).values() if inspect.isclass(one)]
    own = {one.__name__: one for one in classes if one.__module__ in names and not issubclass(one, enum.Enum)}
    for one in own.values():
        if dataclasses.is_dataclass(one):
            given = [field for field in dataclasses.fields(one) if field.init and _is_required(field)]
            yield one.__name__, [field.name for field in given if str(field.type).split(" | ")[0] in own]
        elif "__init__" in vars(one) and not getattr(one, "_is_protocol", False):
            yield one.__name__, list(inspect.signature(one).parameters)


def _is_required(field):
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def test_no_part_is_given_more_than_four_others():
    for name, arguments in constructors():
        assert len(arguments) <= MOST, f"{name} takes {', '.join(arguments)}"


def test_all_constructors_together_take_few_arguments():
    found = dict(constructors())
    assert {"Controller", "State", "Failures", "Ledger"} <= found.keys()
    assert sum(map(len, found.values())) <= MOST_TOGETHER, found


def test_the_time_stands_in_one_place():
    """The state's clock is the only attribute that is called so."""
    clocks = []
    for info in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        source = inspect.getsource(importlib.import_module(info.name))
        clocks += [info.name] * (source.count("self.now = ") + source.count("self._now = "))
    assert clocks == [f"{package.__name__}.state"]
