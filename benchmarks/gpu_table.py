"""The tables that `gpu.py` prints of its JSON file."""

from __future__ import annotations

from typing import Any

Cells = dict[str, Any]


def table(values: dict[str, Any]) -> str:
    """Everything that was measured so far."""
    facts, cells = values["facts"], values["cells"]
    where = f"{facts['device']}, torch {facts['torch']}, CUDA {facts['cuda']}"
    parts = [
        [where + (", reduced size" if facts["quick"] else "")],
        _scoring(cells),
        _speeds(cells),
        _others(cells),
        _rounds(cells),
        _run(cells),
        [f"FAILED {name}: {text}" for name, text in values["errors"].items()],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


def _under(cells: Cells, section: str) -> Cells:
    """The answers of a section, by what follows its name."""
    return {
        name.partition("/")[2]: answer
        for name, answer in cells.items()
        if name.partition("/")[0] == section
    }


def _scoring(cells: Cells) -> list[str]:
    found = _under(cells, "scoring")
    if not found or "copy" not in cells:
        return []
    copied = cells["copy"]["gb_per_s"]
    lines = [
        f"Copies: {copied:,.1f} GB/s. Scoring, ms: two transforms, their share of the copy "
        "bandwidth, the same by",
        "products, a call for 2,000 canaries and one for all; and how far these are from the CPU's",
        "        d   transforms    share   products     2,000       all      off, 2,000 and all",
    ]
    for answer in found.values():
        times = [
            1e3 * answer[n]["seconds"]
            for n in ("transforms", "products", "few", "every")
        ]
        share, off = answer["gb_per_s"] / copied, answer["from_cpu"]
        lines.append(
            f"{answer['dim']:9,}{times[0]:13.2f}{share:9.1%}{times[1]:11.2f}{times[2]:10.1f}"
            f"{times[3]:10.1f}{off['few']:12.1e}{off['every']:12.1e}"
        )
    return lines


def _speeds(cells: Cells) -> list[str]:
    found = _under(cells, "speed")
    if not found:
        return []
    columns = list(dict.fromkeys(name.split("/")[2] for name in found))
    columns.sort(key=lambda text: (text.endswith("free"), int(text.split()[0])))
    lines = [
        "Clients a second by chunk (* and the chunk that was used, if it was another; free: not",
        "repeatable on a GPU), and how far updates are from the CPU's in float32",
        " " * 14 + "".join(f"{column:>9}" for column in columns) + "       off",
    ]
    for model, precision in dict.fromkeys(
        tuple(name.split("/")[:2]) for name in found
    ):
        row = [
            _speed(found.get(f"{model}/{precision}/{column}"), column)
            for column in columns
        ]
        near = cells.get(f"correlation/{model}/{precision}")
        off = f"{near['relative']:10.1e}" if near else ""
        lines.append(f"{model:<5}{precision:<9}{''.join(row)}{off}")
    return lines


def _speed(answer: Any, column: str) -> str:
    if answer is None:
        return " " * 9
    used, asked = answer["chunk"], int(column.split()[0])
    return (
        f"{answer['per_s']:8.1f} "
        if used == asked
        else f"{answer['per_s']:6.1f}*{used:<2}"
    )


def _others(cells: Cells) -> list[str]:
    """A plain loop, and processes that share the device."""
    loops, shared = _under(cells, "loop"), _under(cells, "workers")
    lines = [
        f"{model:<5}a plain loop{answer['per_s']:10.1f}"
        for model, answer in loops.items()
    ]
    for name, answer in shared.items():
        model, workers = name.split("/")
        lines.append(f"{model:<5}{workers:>3} workers{answer['per_s']:11.1f}")
    return ["Clients a second", *lines] if lines else []


def _rounds(cells: Cells) -> list[str]:
    found = _under(cells, "round")
    if not found:
        return []
    parts = list(next(iter(found.values()))["parts"])
    lines = [
        "Seconds of a round, and hours of all rounds",
        "              clients chunk    round"
        + "".join(f"{part:>10}" for part in parts)
        + "    hours",
    ]
    for name, answer in found.items():
        model, precision = name.split("/")
        hours = answer["seconds"] * answer["rounds"] / 3600
        lines.append(
            f"{model:<5}{precision:<9}{answer['clients']:7.0f}{answer['chunk']:6}"
            f"{answer['seconds']:9.3f}"
            + "".join(f"{answer['parts'][part]:10.4f}" for part in parts)
            + f"{hours:9.3f}"
        )
    return lines


def _run(cells: Cells) -> list[str]:
    run = cells.get("run")
    if run is None:
        return []
    done = run["so_far"]["rounds"]
    hours = run["seconds"] / done * run["rounds"] / 3600
    lines = [
        f"StackOverflow run ({run['precision']}, chunk {run['chunk']}, z = "
        f"{run['noise_multiplier']:g}): {done:,} of {run['rounds']:,} rounds, "
        f"{run['seconds'] / done:.3f} s each, {hours:.3f} hours in all; "
        f"loss {run['loss'][0]:.3f} → {run['loss'][1]:.3f}"
    ]
    for name, label in (("final", "final model"), ("all", "every round")):
        if found := run["so_far"].get(name):
            interval = f"{found['low']:.3g} – {found['high']:.3g}"
            lines.append(f"    ε, {label}: {found['epsilon']:.3g} ({interval})")
    so_far = run["so_far"]
    return [
        *lines,
        f"    analytical ε: {so_far['analytical']:.3g} at δ = {so_far['delta']:.2g}, after "
        f"{so_far['canaries']} canaries",
    ]
