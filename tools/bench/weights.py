"""How fast weights get from the trainer to the replicas: each figure beside its limit and its peers, in the same run.

    uv run python tools/bench/weights.py [--gib N] [--repeats N] [--quick] [--large | --ranks | --late] [--no-peers] [--json F]

What is compared takes turns, and ratios are medians over the turns: what else the machine does meets all of them. Pulls are
into memory that was used before, as a replica's weights are. Its parts are in `weight_transfer/`.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from weight_transfer import large, late, model, over_tcp, peers, rank_shares, same_host, stall
from weight_transfer.contenders import Contender, Row, measure, printed

COUNTS = (1, 4, 16)


def close(contenders: Sequence[Contender]) -> None:
    for contender in contenders:
        contender.close()


def transfers(nbytes: int, repeats: int, with_peers: bool) -> tuple[list[Row], dict[str, str]]:
    """Same host, TCP and peers, all in the same turns."""
    with same_host.served(nbytes) as (address, token):
        ours = [*same_host.contenders(address, token, nbytes), *over_tcp.contenders(address, token, nbytes)]
        others, missing = peers.available(model.total_bytes(nbytes)) if with_peers else ([], {})
        try:
            return measure([*ours, *others], repeats), missing
        finally:
            close([*ours, *others])


def stalls(nbytes: int, repeats: int) -> tuple[list[stall.Stall], float]:
    found, copy_s = stall.measured(COUNTS, nbytes, repeats)
    print(f"\nThe trainer's stall for a publication of {model.total_bytes(nbytes) / 2**20:.0f} MiB, in ms")
    print(f"  {'relays and pullers':<46} {'at rest':>8} {'lowest-highest':>16}   {'at work':>8}")
    for row in found:
        spread = f"{row.low_s * 1e3:.0f}-{row.high_s * 1e3:.0f}"
        print(f"  {row.relays:<46} {row.at_rest_s * 1e3:>8.1f} {spread:>16}   {row.at_work_s * 1e3:>8.1f}")
    print(f"  {'a plain copy, tensor by tensor':<46} {copy_s * 1e3:>8.1f}")
    return found, copy_s


def chains(repeats: int) -> tuple[list[dict[str, Any]], str | None]:
    """Broadcasts between hosts in network namespaces, or why they cannot be measured here."""
    from weight_transfer import chain

    try:
        return chain.measured(repeats), None
    except (SystemExit, RuntimeError, OSError) as error:  # no root, no ip, no namespaces
        return [], str(error)


def moved(nbytes: int) -> large.Moved:
    found = large.measured(nbytes)
    print(f"\n{found.nbytes / 2**30:.2f} GiB from a publisher over a relay to a reader: {found.seconds:.1f} s")
    print(f"  {'process':<46} {'private MiB':>12} {'shared MiB':>12}   limit")
    limits = {
        "publisher": "two tensors of 64 MiB; staging is shared",
        "relay": "none; staging and slot are shared",
        "reader": "two tensors of 64 MiB; it reads the slot",
    }
    for name, private in found.private_mib.items():
        print(f"  {name:<46} {private:>12.0f} {found.shared_mib[name]:>12.0f}   {limits[name]}")
    return found


def by_ranks(nbytes: int, repeats: int) -> list[dict[str, Any]]:
    found = rank_shares.measured(nbytes, repeats)
    rank_shares.printed(found, model.total_bytes(nbytes))
    return [asdict(row) for row in found]


def late_replicas(nbytes: int, repeats: int) -> list[dict[str, Any]]:
    found = late.measured(nbytes, repeats)
    late.printed(found, model.total_bytes(nbytes))
    return [asdict(row) for row in found]


def main() -> None:
    parser = argparse.ArgumentParser(description="How fast weights get from the trainer to the replicas.")
    parser.add_argument("--gib", type=float, help="size of the model; 0.5, or 8 with --large")
    parser.add_argument("--repeats", type=int, help="turns; 9")
    parser.add_argument("--quick", action="store_true", help="a small model and few turns")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--no-chain", action="store_true")
    parser.add_argument("--large", action="store_true", help="only: a large model in bounded memory")
    parser.add_argument("--ranks", action="store_true", help="only: versions that 1, 2 and 4 ranks published in parts")
    parser.add_argument("--late", action="store_true", help="only: a late replica, from a relay and from a peer")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    report: dict[str, Any] = {"benchmark": "weights", "load_before": os.getloadavg()[0], "cores": os.cpu_count()}
    if options.large:
        report["large"] = asdict(moved(int((options.gib or (1 if options.quick else 8)) * 2**30)))
    elif options.ranks:
        report["ranks"] = by_ranks(int((options.gib or 0.5) * 2**30), options.repeats or (3 if options.quick else 9))
    elif options.late:
        report["late"] = late_replicas(
            int((options.gib or 0.5) * 2**30), options.repeats or (3 if options.quick else 9)
        )
    else:
        nbytes = int((options.gib or (0.25 if options.quick else 0.5)) * 2**30)
        repeats = options.repeats or (3 if options.quick else 9)
        rows, missing = transfers(nbytes, repeats, not options.no_peers)
        title = f"{model.total_bytes(nbytes) / 2**20:.0f} MiB between two processes of this host, {repeats} turns"
        printed(title, rows)
        for name, why in missing.items():
            print(f"  {name} is missing: {why}")
        found, copy_s = stalls(2**25 if options.quick else 2**26, repeats)
        ratios = {row.name: row.ratio for row in rows}
        report |= {
            "bytes": model.total_bytes(nbytes),
            "repeats": repeats,
            "rows": [asdict(row) for row in rows],
            "missing": missing,
            "ranks": by_ranks(nbytes, repeats),
            "late": late_replicas(nbytes, repeats),
            "stalls": [asdict(row) for row in found],
            "copy_s": copy_s,
            "stall_over_copy": found[0].at_rest_s / copy_s,
            "shm_pull_over_memcpy": ratios["pull into separate tensors, plain"],
            "shm_verified_pull_over_memcpy": ratios["pull into separate tensors, verified"],
            "tcp_over_raw_tcp": ratios["pull over TCP, verified"],
            "stall_16_over_1": found[-1].at_rest_s / found[0].at_rest_s,
            "chain_over_formula": None,
        }
        if not options.no_chain:
            found_chains, why = chains(2 if options.quick else 3)
            report["chain"] = found_chains
            if why is not None:
                report["missing"]["chain"] = why
                print(f"\nBroadcasts between hosts cannot be measured here: {why}")
            else:
                broadcasts = [row for row in found_chains if row["what"] == "broadcast"]
                report["chain_over_formula"] = max(row["ratio"] for row in broadcasts)  # the worst of the medians
                print(f"\n{'Broadcast down a chain, relays':<48} {'seconds':>8} {'formula':>8} {'ratio':>6}")
                for row in broadcasts:
                    print(f"  {row['relays']:<46} {row['seconds']:>8.3f} {row['formula_s']:>8.3f} {row['ratio']:>6.2f}")
    report["load_after"] = os.getloadavg()[0]
    print(f"\nload {report['load_before']:.1f} before, {report['load_after']:.1f} after, {report['cores']} cores")
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
