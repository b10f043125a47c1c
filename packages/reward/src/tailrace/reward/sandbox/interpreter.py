"""The Python that runs the programs: what of the host it needs to see, and how it is started."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

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
