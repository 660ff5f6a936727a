"""Starts the probe from its folder under a name of its own."""

import sys


def _package(folder: str) -> None:
    from importlib.machinery import PathFinder, SourceFileLoader
    from importlib.util import module_from_spec, spec_from_loader

    loader = SourceFileLoader("_kopt_probe", folder + "/__init__.py")
    spec = spec_from_loader("_kopt_probe", loader, is_package=True)
    if spec is None or not hasattr(PathFinder, "find_spec"):
        raise SystemExit("the probe's folder is incomplete")
    spec.submodule_search_locations = [folder]
    module = module_from_spec(spec)
    sys.modules["_kopt_probe"] = module
    loader.exec_module(module)


if __name__ == "__main__":
    # Python put this folder on the path, where its files would hide the script's (and the libraries') modules.
    _package(sys.path.pop(0))
    from _kopt_probe.run import main  # type: ignore[import-not-found]

    raise SystemExit(main(sys.argv[1:]))
