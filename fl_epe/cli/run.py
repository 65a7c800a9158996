"""``fl-epe run`` and ``fl-epe resume``: train a task with canaries, and report on it."""

from __future__ import annotations

import argparse
import dataclasses
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from fl_epe.cli.console import ProgressLine
from fl_epe.cli.report import RECORD, show_report
from fl_epe.config import RunConfig
from fl_epe.old_names import with_new_names
from fl_epe.seeding import Seeds

if TYPE_CHECKING:
    from fl_epe.flower import Job

CHECKPOINT = "checkpoint.npz"

_TASKS = (
    "digits",
    "fashion-mnist",
    "emnist",
    "emnist-twin",
    "stackoverflow",
    "stackoverflow-twin",
    "shakespeare",
)

# What each setting of `RunConfig` means to somebody who types it.
_SETTINGS = {
    "rounds": "rounds of training",
    "clients_per_round": "expected number of real clients in a round",
    "participation": "schedule: 'epochs' (shuffled, as in the paper), 'poisson', "
    "'min-separation:separation=5' or another kind of fl_epe.schedules",
    "num_canaries": "observed canaries, which take part in training",
    "unobserved": "canaries that never take part and are only tracked",
    "inclusion": "which canaries take part: 'fixed' numbers of them, or each by a fair 'coin'",
    "canary_participations": "how often each observed canary takes part",
    "noise_multiplier": "DP noise on the sum over the clip norm, z; 0 for none",
    "clipping": "'adaptive' (follows a quantile of the update norms) or 'fixed'",
    "clip_norm": "clip norm, or where the adaptive one starts",
    "clip_quantile": "share of updates that the adaptive norm leaves unclipped",
    "clip_rate": "step size of the adaptive norm",
    "clip_count_std": "noise on the count of unclipped updates (default: voters / 20)",
    "server_optimizer": "'sgd' or 'adam'",
    "server_learning_rate": "step size of the server",
    "server_momentum": "momentum of the server's sgd",
    "local_epochs": "passes of a client over its data in a round",
    "local_batch_size": "examples in a client's step",
    "local_learning_rate": "step size of a client",
    "delta": "target δ (default: clients^-1.1)",
}
_FLAGS = {
    "canaries_vote": "let canaries vote on the adaptive clip norm, as the paper's code did",
    "full_knowledge": "also track an adversary who knows the real clients' sum of every round",
}

_EXAMPLES = """examples:
  fl-epe run digits
  fl-epe run digits --noise-multiplier 0.5 --seed 1 --output runs/half
  fl-epe run digits --participation poisson --backend ray --workers 2
  fl-epe run fashion-mnist --data-dir /usr/share/datasets/fashion-mnist
  fl-epe run stackoverflow-twin --num-clients 2000 --rounds 100 --clients-per-round 20
"""


def add_run(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``run`` to the subcommands."""
    run = commands.add_parser(
        "run",
        help="train a task with DP-FedAvg and audit it",
        description="Train a task with DP-FedAvg, canary clients among the real ones, and write "
        "what the model gives away: a table, record.npz, report.json, report.html and pictures.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run.add_argument("task", metavar="TASK", help=f"what to train: {', '.join(_TASKS)}")
    run.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="where to write (default: runs/TASK-DATE-TIME)",
    )
    run.add_argument(
        "--seed",
        type=int,
        help="repeat exactly: all randomness from this number (default: the operating system's "
        "entropy, as a guessable canary or noise seed is an attack)",
    )
    run.add_argument("--num-clients", type=int, help="clients that share the data out")
    run.add_argument(
        "--data-dir",
        help="where the data of fashion-mnist, emnist, stackoverflow or shakespeare is: a folder, "
        "or for emnist and shakespeare the id of a hub's data set",
    )
    run.add_argument(
        "--max-examples",
        type=int,
        metavar="N",
        help="most examples of a client, for emnist, stackoverflow, shakespeare and twins",
    )
    run.add_argument(
        "--evaluate-every",
        type=int,
        default=5,
        metavar="ROUNDS",
        help="rounds between evaluations on held-out data (default: 5)",
    )
    _add_machine_options(run)
    settings = run.add_argument_group("training and audit (a task may have defaults of its own)")
    fields = {field.name: field for field in dataclasses.fields(RunConfig)}
    for name, text in _SETTINGS.items():
        default = fields[name].default
        kind = float if default is None else type(default)
        suffix = "" if default is None else f" (default: {default})"
        settings.add_argument(_option(name), type=kind, help=text + suffix, metavar=_metavar(kind))
    for name, text in _FLAGS.items():
        settings.add_argument(_option(name), action="store_true", default=None, help=text)
    run.set_defaults(command=_run)


def add_resume(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``resume`` to the subcommands."""
    resume = commands.add_parser(
        "resume",
        help="go on with a run that was stopped",
        description="Go on with a run that was stopped or killed, from its last checkpoint. "
        "With a seed, the result is the same as if it had never stopped.",
    )
    resume.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="where the run was writing")
    _add_machine_options(resume)
    resume.set_defaults(command=_resume)


def _add_machine_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--backend",
        default="in-process",
        choices=("in-process", "ray"),
        help="threads of this process, or Flower's Ray simulation (default: in-process)",
    )
    workers = min(os.cpu_count() or 1, 8)
    parser.add_argument(
        "--workers",
        type=int,
        default=workers,
        help=f"nodes that share the clients out; no influence on the result (default: {workers})",
    )
    parser.add_argument(
        "--checkpoint-every",
        type=int,
        default=10,
        metavar="ROUNDS",
        help="rounds between checkpoints, from which 'fl-epe resume' goes on (default: 10)",
    )
    parser.add_argument(
        "--score-memory",
        type=_positive_mebibytes,
        default="384",
        metavar="MIB",
        help="for rounds that wait to be scored together: raise it for large models and many "
        "rounds, as every canary is made anew for each block (default: 384)",
    )


def _positive_mebibytes(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"Expected a whole number of MiB >= 1, got {text!r}.")
    return int(text) << 20


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _metavar(kind: type) -> str:
    return {int: "N", float: "X", str: "NAME"}[kind]


def _run(arguments: argparse.Namespace) -> int:
    from fl_epe.flower import Job
    from fl_epe.tasks import load_task

    options = {
        name: value
        for name, value in (
            ("num_clients", arguments.num_clients),
            ("data_dir", arguments.data_dir),
            ("max_examples", arguments.max_examples),
        )
        if value is not None
    }
    task = load_task(arguments.task, **options)
    chosen = {name: getattr(arguments, name) for name in (*_SETTINGS, *_FLAGS)}
    given = {name: value for name, value in chosen.items() if value is not None}
    config = RunConfig.from_dict(
        {"clients": task.num_clients, **with_new_names(task.defaults), **given}
    )
    job = Job(task, config, Seeds.derive(arguments.seed), arguments.evaluate_every)
    output = arguments.output or Path("runs", time.strftime(f"{arguments.task}-%Y%m%d-%H%M%S"))
    if output.exists() and not output.is_dir():
        raise ValueError(f"Expected output={str(output)!r} to be a directory.")
    if (output / RECORD).exists():
        raise ValueError(f"Expected output={str(output)!r} to be free: it holds a finished run.")
    if (output / CHECKPOINT).exists():
        raise ValueError(
            f"Expected output={str(output)!r} to be free: it holds an unfinished run. "
            f"Go on with it: fl-epe resume {output}"
        )
    return _carry_out(job, output, arguments)


def _resume(arguments: argparse.Namespace) -> int:
    from fl_epe.simulation import load_job

    if (arguments.run_dir / RECORD).exists():
        raise ValueError(
            f"Expected run_dir={str(arguments.run_dir)!r} to hold an unfinished run: this one is "
            f"finished. See: fl-epe report {arguments.run_dir}"
        )
    job = load_job(arguments.run_dir / CHECKPOINT)
    return _carry_out(job, arguments.run_dir, arguments)


def _carry_out(job: Job, output: Path, arguments: argparse.Namespace) -> int:
    from fl_epe.flower import simulate

    console = Console()
    checkpoint = output / CHECKPOINT
    try:
        with ProgressLine(console) as line:
            record = simulate(
                job,
                backend=arguments.backend,
                workers=arguments.workers,
                checkpoint=checkpoint,
                checkpoint_every=arguments.checkpoint_every,
                on_round=line.show,
                score_memory=arguments.score_memory,
            )
    except KeyboardInterrupt:
        console.print(f"\nStopped. Go on with: fl-epe resume {output}", highlight=False)
        return 130
    record.save(output / RECORD)
    checkpoint.unlink(missing_ok=True)
    return show_report(console, record, output)
