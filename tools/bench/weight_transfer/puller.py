"""A puller's process: copies each version that it is told into memory of its own, and says so."""

from __future__ import annotations

import json
import os
import sys

from tailrace.paramserver import RawTensor, RelayReader, VersionRetired


def main() -> None:
    mine: dict[str, RawTensor] = {}
    with RelayReader(sys.argv[1], token=os.environ["TAILRACE_RELAY_TOKEN"], same_host=True) as reader:
        for line in sys.stdin:
            version = int(line)
            try:
                with reader.lease(version, timeout_s=120, verify=False) as weights:
                    if not mine:
                        mine = {
                            spec.name: RawTensor(spec.dtype, spec.shape, bytearray(spec.nbytes))
                            for spec in weights.manifest.tensors
                        }
                    weights.copy_into(mine)
            except VersionRetired:  # a newer one came first
                pass
            print(json.dumps({"version": version}), flush=True)


if __name__ == "__main__":
    main()
