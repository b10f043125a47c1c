"""StaleFlow's quick start at several bounds and seeds, and the baselines: accuracy, throughput, staleness, lengths.

    uv run python tools/bench/staleness_bounds.py DIR [--bounds 0 1 3 10] [--seeds 0 1 2] [--baselines NAME ...] [--no-run]

Runs what DIR does not hold yet, one after another, bounds in turn within a seed (two to four minutes each on two cores), then
prints tables in Markdown and writes DIR/bounds.html. Every run is compared at equal numbers of batches trained on. Differences
between bounds are set against the spread over seeds and the binomial error of an evaluation.
"""

from __future__ import annotations

import argparse
import math
import statistics
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tailrace.contracts import Why
from tailrace.pipeline.run.directory import RunDirectory
from tailrace.pipeline.run.figures.batches import percentile
from tailrace.report.charts.lengths import offered
from tailrace.report.figures.held_out import results
from tailrace.report.figures.prompts import PromptFates
from tailrace.report.record import Record, read_record

CONFIGS = Path(__file__).parents[2] / "configs" / "staleflow"
BASELINES = ("in-flight-cap", "one-step", "synchronous", "vanilla", "redundant")
COLORS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9")


def run(target: list[str], root: Path, seed: int) -> None:
    command = [sys.executable, "-m", "tailrace.cli.main", "run", *target, "--seed", str(seed), "--plain"]
    command += ["--set", "evaluation.controls=false", "--run-dir", str(root)]
    with root.with_suffix(".log").open("w") as log:
        subprocess.run(command, check=True, stdout=log, stderr=log)


def wanted(bounds: list[int], seeds: list[int], baselines: list[str]) -> list[tuple[str, int, list[str]]]:
    """(name, seed, what to run), bounds in turn within a seed."""
    jobs = []
    for seed in seeds:
        jobs += [(f"b{bound}", seed, ["staleflow", "--set", f"pipeline.admission.bound={bound}"]) for bound in bounds]
    for seed in seeds:
        jobs += [(name, seed, [str(CONFIGS / f"{name}.toml")]) for name in baselines]
    return jobs


def curve(record: Record) -> dict[int, float]:
    """Sampled accuracy by batches trained on."""
    return {one.step: one.accuracy.value for one in results(record).curve if one.accuracy is not None}


def row(record: Record) -> dict[str, float | str]:
    """What a run shows."""
    lags = [lag for batch in record.batches for lag in batch.at_consumption]
    began = record.batches[0].began_s
    seconds = record.last_step_s - began
    tokens = sum(length for batch in record.batches for length in batch.lengths)
    generated, without = offered(record), record.folds.offcuts.finished.get(Why.NO_SIGNAL, [])
    with_signal = sorted((Counter(generated) - Counter(without)).elements())
    trained = sorted(length for batch in record.batches for length in batch.lengths)
    account = PromptFates.of(record.folds.run)
    return {
        "seconds of RL": seconds,
        "trained tokens/s": tokens / seconds,
        "generated tokens/s": sum(generated) / seconds,
        "mean staleness": statistics.fmean(lags),
        "max staleness": max(lags),
        "filtered": sum(account.filtered.values()),
        "lost": account.lost,
        "offered p50 / p99": f"{percentile(with_signal, 0.5):.0f} / {percentile(with_signal, 0.99):.0f}",
        "trained p50 / p99": f"{percentile(trained, 0.5):.0f} / {percentile(trained, 0.99):.0f}",
        "offered mean": statistics.fmean(with_signal),
        "trained mean": statistics.fmean(trained),
        "contradictions": record.contradictions,
    }


def spread(values: list[float], digits: int = 3) -> str:
    """Mean and standard deviation over seeds."""
    if len(values) < 2:
        return f"{values[0]:.{digits}f}"
    return f"{statistics.fmean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}"


def tables(records: dict[tuple[str, int], Record]) -> str:
    names = list(dict.fromkeys(name for name, _ in records))
    out = ["| | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    curves = {key: curve(record) for key, record in records.items()}
    steps = sorted(set.intersection(*(set(found) for found in curves.values())))
    by = {name: [key for key in records if key[0] == name] for name in names}
    for step in steps:
        cells = [spread([curves[key][step] for key in by[name]]) for name in names]
        out.append(f"| accuracy after {step} batches | " + " | ".join(cells) + " |")
    means = [spread([statistics.fmean(curves[key][s] for s in steps if s) for key in by[name]]) for name in names]
    out.append("| mean over the curve | " + " | ".join(means) + " |")
    rows = {key: row(record) for key, record in records.items()}
    for label in next(iter(rows.values())):
        cells = []
        for name in names:
            values = [rows[key][label] for key in by[name]]
            text = [value for value in values if isinstance(value, str)]
            cells.append(", ".join(text) if text else spread([float(v) for v in values if not isinstance(v, str)], 2))
        out.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(out)


def differences(records: dict[tuple[str, int], Record], problems: int) -> str:
    """Each bound against bound 0, paired by seed, beside the error of a difference of two evaluations.

    `delayed` sets the lag itself apart: it compares with bound 0 as many batches earlier as what was trained on until then was
    behind in the mean (its curve interpolated). What is left of a difference is harm beyond delay.
    """
    out = []
    curves = {key: curve(record) for key, record in records.items()}
    seeds = sorted({seed for name, seed in records if name == "b0"})
    for name in dict.fromkeys(name for name, _ in records if name[1:].isdigit() and name != "b0"):
        for step in sorted(curves["b0", seeds[0]]):
            pairs = [(curves[name, s][step], curves["b0", s][step]) for s in seeds]
            delta = [one - other for one, other in pairs]
            late = [curves[name, s][step] - at(curves["b0", s], step - lag(records[name, s], step)) for s in seeds]
            error = math.sqrt(sum(a * (1 - a) + b * (1 - b) for a, b in pairs) / problems) / len(pairs)
            out.append(
                f"{name} - b0 after {step:2d} batches: {statistics.fmean(delta):+.3f}, delayed {statistics.fmean(late):+.3f}, "
                f"error {error:.3f}; each " + " ".join(f"{value:+.3f}" for value in delta)
            )
    return "\n".join(out)


def lag(record: Record, step: int) -> float:
    """Mean staleness of the first batches."""
    lags = [value for batch in record.batches[:step] for value in batch.at_consumption]
    return statistics.fmean(lags) if lags else 0.0


def at(points: dict[int, float], step: float) -> float:
    """A curve between its points."""
    steps = sorted(points)
    right = next((found for found in steps if found >= step), steps[-1])
    left = max((found for found in steps if found <= step), default=steps[0])
    share = (step - left) / (right - left) if right > left else 0.0
    return points[left] + share * (points[right] - points[left])


def figure(records: dict[tuple[str, int], Record], path: Path) -> None:
    """Accuracy by batches and by time, and the staleness of each buffer."""
    from plotly.subplots import make_subplots

    names = list(dict.fromkeys(name for name, _ in records))
    bounds = [name for name in names if name[1:].isdigit()]
    titles = ["accuracy by batches trained on", "accuracy by seconds of RL"]
    titles += [f"staleness of each batch, bound {name[1:]}, seed 0" for name in bounds]
    rows = 1 + math.ceil(len(bounds) / 2)
    page = make_subplots(rows=rows, cols=2, subplot_titles=titles, vertical_spacing=0.09)
    for index, name in enumerate(bounds):
        color = COLORS[index % len(COLORS)]
        for seed in [seed for found, seed in records if found == name]:
            record = records[name, seed]
            points = curve(record)
            began = record.batches[0].began_s
            ends = {one.step: one.at_s - began for one in results(record).curve}
            shown = {
                "mode": "lines+markers",
                "line": {"color": color},
                "name": f"bound {name[1:]}",
                "legendgroup": name,
            }
            page.add_scatter(x=list(points), y=list(points.values()), showlegend=seed == 0, row=1, col=1, **shown)
            times = [max(0.0, ends[step]) for step in points]
            page.add_scatter(x=times, y=list(points.values()), showlegend=False, row=1, col=2, **shown)
        record = records[name, min(seed for found, seed in records if found == name)]
        worst = max(lag for batch in record.batches for lag in batch.at_consumption)
        for lag in range(worst + 1):
            shares = [Counter(batch.at_consumption)[lag] / len(batch.at_consumption) for batch in record.batches]
            shade = f"rgba(0,114,178,{0.12 + 0.88 * lag / max(1, worst):.2f})"
            page.add_bar(
                x=[batch.version for batch in record.batches],
                y=shares,
                marker={"color": shade, "line": {"width": 0}},
                name=str(lag),
                showlegend=False,
                row=2 + index // 2,
                col=1 + index % 2,
            )
    page.update_layout(
        barmode="stack",
        bargap=0.05,
        height=330 * rows,
        width=1150,
        template="plotly_white",
        legend={"orientation": "h", "y": 1.06},
        margin={"t": 70, "l": 50, "r": 20, "b": 40},
    )
    page.update_yaxes(tickformat=".0%", row=1)
    page.write_html(path, config={"displayModeBar": False})
    print(f"figure: {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--bounds", type=int, nargs="+", default=[0, 1, 3, 10])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--baselines", nargs="*", default=[], choices=[path.stem for path in CONFIGS.glob("*.toml")])
    parser.add_argument("--no-run", action="store_true", help="only compare what is there")
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    records = {}
    for name, seed, target in wanted(options.bounds, options.seeds, options.baselines):
        root = options.directory / f"{name}-s{seed}"
        if not (root / "summary.json").exists():
            if options.no_run:
                continue
            print(f"running {root.name}", file=sys.stderr, flush=True)
            run(target, root, seed)
        records[name, seed] = read_record(RunDirectory.open(root))
    print(tables(records))
    if (
        all((f"b{bound}", seed) in records for bound in options.bounds for seed in options.seeds)
        and 0 in options.bounds
    ):
        print()
        print(differences(records, records["b0", options.seeds[0]].config.task.held_out_size))
    figure({key: record for key, record in records.items() if key[0][1:].isdigit()}, options.directory / "bounds.html")


if __name__ == "__main__":
    main()
