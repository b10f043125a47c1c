"""The Python that runs the programs: what of the host and of its installed modules it needs to see, how it starts."""

from __future__ import annotations

import re
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution, packages_distributions
from pathlib import Path

from tailrace.reward.errors import NoSandboxError

_SHARED_MEMORY = Path(__file__).with_name("shared_memory.py").read_text(encoding="utf-8")
# Runs in the sandboxed interpreter, before the program, which then has the whole process. `site` is not imported (it would
# add site-packages), so the two names that programs use of it are made here.
_BOOT = """\
class Finder:
    modules = MODULES
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if path is None and name in cls.modules:
            import sys
            found, external = cls.modules[name], sys.modules["_frozen_importlib_external"]
            if not external._path_isdir(found):
                return external.spec_from_file_location(name, found)
            if external._path_isfile(found + "/__init__.py"):
                return external.spec_from_file_location(name, found + "/__init__.py", submodule_search_locations=[found])
            spec = sys.modules["_frozen_importlib"].ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations[:] = [found]
            return spec
        if name not in ("_multiprocessing", "_posixshmem", "multiprocessing.heap"):
            return None
        import sys
        space = sys.modules.get("multiprocessing shared memory")
        if space is None:
            space = sys.modules["multiprocessing shared memory"] = type(sys)("multiprocessing shared memory")
            exec(compile(SHARED, "shared_memory", "exec", dont_inherit=True), vars(space))
        return space.spec_of(name, path, sys.meta_path[1:])
def boot(finder):
    import _sitebuiltins, builtins, sys
    builtins.exit, builtins.quit = _sitebuiltins.Quitter("exit", "EOF"), _sitebuiltins.Quitter("quit", "EOF")
    sys.meta_path.insert(0, finder)
    if finder.modules:  # their threads would count for the program, and take a stack each
        import os
        os.environ.update({name + "_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")})
    with open(sys.argv[1], "rb") as file:
        source = file.read()
    sys.argv[:] = ["program.py"]
    return compile(source, "program.py", "exec", dont_inherit=True)
__file__ = "program.py"
code = boot(Finder)
del boot, Finder
exec(code)
""".replace("SHARED", repr(_SHARED_MEMORY))


def executable() -> Path:
    """The interpreter itself, outside any virtual environment."""
    base = getattr(sys, "_base_executable", "") or sys.executable
    return Path(base).resolve()


def visible_files() -> list[Path]:
    """What a program may read: the interpreter, its standard library, and the shared libraries that these load."""
    return [executable(), standard_library(), *_libraries()]


def standard_library() -> Path:
    """The directory of the standard library."""
    return Path(sysconfig.get_path("stdlib")).resolve()


def _libraries() -> list[Path]:
    triplet = sysconfig.get_config_var("MULTIARCH") or ""
    folders = [Path(root, triplet) for root in ("/usr/lib", "/lib") if triplet and Path(root, triplet).is_dir()]
    folders += [Path(root) for root in ("/usr/lib64", "/lib64") if Path(root).is_dir()]
    if not folders:  # a distribution without multiarch folders
        folders = [Path("/usr/lib")]
    shared = sorted(Path(sys.base_prefix, "lib").resolve().glob("libpython*.so*"))
    cache = [Path("/etc/ld.so.cache")] if Path("/etc/ld.so.cache").exists() else []
    return [*folders, *shared, *cache]


def command(program: Path, modules: Mapping[str, str]) -> list[str]:
    """The command that runs the program file: without environment, user site, site-packages and .pyc writing.

    Args:
        program: the file.
        modules: paths of the modules that it may import besides the standard library, by their names.
    """
    boot = _BOOT.replace("MODULES", repr(dict(modules)))
    return [str(executable()), *("-I", "-S", "-B", "-X", "utf8", "-c", boot), str(program)]


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@cache
def module_files(names: tuple[str, ...]) -> dict[str, str]:
    """The files and directories of modules, and of all that their distributions require and is installed.

    Args:
        names: modules as they are imported, such as ``numpy``. Those of the standard library are there without.

    Returns:
        Paths by the name that is imported, or by the file's own where nothing imports it.

    Raises:
        NoSandboxError: one is not installed, or lies in no directory of installed modules.
    """
    found: dict[str, str] = {}
    owners = packages_distributions() if names else {}
    for name in names:
        if name in sys.stdlib_module_names:
            continue
        if name not in owners:
            raise NoSandboxError(f"found the module {name!r}, expected one that is installed here")
        for owner in owners[name]:
            for needed in _needed(distribution(owner)):
                found |= _entries(needed)
        if name not in found:
            raise NoSandboxError(
                f"found the module {name!r}, which is installed in place, expected a copy in site-packages"
            )
    return found


def _needed(first: Distribution) -> Iterator[Distribution]:
    """A distribution and all that it requires without extras, as far as it is installed."""
    waiting, seen = [first], {first.metadata["Name"].lower()}
    while waiting:
        yield (here := waiting.pop())
        for line in here.requires or ():
            required = _NAME.match(line)
            if required is None or "extra ==" in line or required[0].lower() in seen:
                continue
            seen.add(required[0].lower())
            try:
                waiting.append(distribution(required[0]))
            except PackageNotFoundError:  # for another platform or Python
                continue


def _entries(installed: Distribution) -> dict[str, str]:
    tops = {file.parts[0] for file in installed.files or ()}
    found = {}
    for top in sorted(tops):
        path = Path(str(installed.locate_file(top))).resolve()
        if top not in ("..", "__pycache__") and not top.endswith((".dist-info", ".egg-info", ".pth")) and path.exists():
            found[top if path.is_dir() else top.partition(".")[0]] = str(path)
    return found
