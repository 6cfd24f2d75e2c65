"""``cs-heads reproduce``: the whole protocol of a paper on a model."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from cyclopts import Parameter

from cs_heads.cli.cost import print_steps
from cs_heads.cli.flags import USUAL, Command, Evaluations, Examples, Heads, Seed, Switch, one_line_each, write_config
from cs_heads.cli.loading import check_out
from cs_heads.progress import announce

if TYPE_CHECKING:
    import pandas as pd

    from cs_heads.reproduce import Reproduction


_LOADING = ("data", "seed", "allow_code", "paper_prompts", "quick")


@one_line_each
@dataclass(kw_only=True)
class ReproduceFlags(Command):
    """The flags of ``reproduce``.

    Attributes:
        paper: paper whose protocol is run
        model: Hugging Face name, local folder or GGUF file, or demo, which has its own tasks in the paper's roles; of
            several, each given by a --model of its own, the page in OUT lays the tables side by side
        out: folder of tables, figures and the store
        tasks: some of the paper's tasks, and what to measure in their place: a built-in task, a .jsonl or .csv file, as
            NAME=TASK, commas between (default: all with data; fewer tasks give fewer tables)
        data: local files: NAME.jsonl or NAME.csv with records, or a folder NAME with a benchmark's own files
        steps: some of the steps of the paper, commas between (default: all)
        quick: one design, 40 examples of a side, short texts and fits: to see that all runs, in minutes
        n: finding examples a task, fewer of a smaller one (default: the paper's; with --quick 40)
        n_unseen: unseen examples a task (default: all, with --quick 40)
        k: heads ablated (default: 5)
        n_masks: numbers of masks to search over, commas between (default: 100,200,400)
        densities: densities to search over, commas between (default: .01,.02,.05,.1)
        budget: example-evaluations of greedy search and of one-shot at most (default: no limit; with --quick 2,000)
        n_seeds: seeds of gates (default: 10; with --quick 2)
        n_rule_seeds: seeds of gates of the identity rules (default: 20; with --quick 2)
        fit_steps: optimizer steps of each phase of gates (default: 500; with --quick 20)
        n_pairs: pairs of prompts for mediation (default: 50; with --quick 4)
        seed: seed of splits, masks, fits and tests
        allow_code: tasks whose answer is a program may run it, in a sandbox
        paper_prompts: swearing has the paper's twelve prompts alone, six of them to find heads with
        prepend_bos: whether a beginning-of-sequence token stands before every prompt (default: as the tokenizer does)
        batch_tokens: tokens of one forward pass at most (default: what the device is fast with)
        progress: whether a progress bar is shown (default: yes; off a terminal in lines, one a minute)
        dry_run: print the cost, and stop
        dtype: float32, bfloat16 or float16 (default: bfloat16 on a GPU, as in the papers, else float32)
    """

    paper: Annotated[Literal["cs", "chg"], USUAL]
    model: Annotated[list[str], USUAL]
    out: Annotated[Path, USUAL]
    tasks: Annotated[str | None, USUAL] = None
    data: Annotated[Path | None, USUAL] = None
    steps: Annotated[str | None, USUAL] = None
    quick: Annotated[Switch, USUAL] = False
    n: Examples = None
    n_unseen: Examples = None
    k: Heads = None
    n_masks: str | None = None
    densities: str | None = None
    budget: Evaluations = None
    n_seeds: Examples = None
    n_rule_seeds: Examples = None
    fit_steps: Examples = None
    n_pairs: Examples = None
    seed: Seed = 0
    allow_code: Annotated[Switch, USUAL] = False
    paper_prompts: Switch = False
    prepend_bos: bool | None = None
    batch_tokens: int | None = None
    progress: bool | None = None
    dry_run: Annotated[Switch, USUAL] = False
    dtype: Literal["float32", "bfloat16", "float16"] | None = None

    @property
    def kept_in(self) -> Path:
        """The store of the folder, or the folder of several."""
        from cs_heads.reproduce.reproduction import STORE

        return self.out if self.model[1:] else self.out / STORE

    @property
    def folders(self) -> dict[str, Path]:
        """The folder of each model: that of ``--out``, or one in it where they are several."""
        folders = {name: self.out / Path(name).name for name in self.model}
        if len(set(folders.values())) < len(self.model):
            raise ValueError(f"--model must name models whose last parts differ, got {', '.join(self.model)}")
        return folders if self.model[1:] else {self.model[0]: self.out}


def reproduce(options: Annotated[ReproduceFlags, Parameter(name="*")]) -> None:
    """Run the whole protocol of a paper, tables and figures, on a model.

    Make every table and figure of a paper's protocol for a model, beside what was published.

      cs   Compressed Sensing for Capability Localization (arXiv 2603.03335): heads of mathematics, code, swearing,
           rhyme and hazardous knowledge are found on 100 examples of each task by a search over masks and densities;
           universal heads are ranked last, and the others ablated on all unseen examples of every task.
      chg  Causal Head Gating (arXiv 2505.13737): gates on all heads, fitted with several seeds; kinds of heads,
           curves, mediation, and contrastive gates on held-out tasks.

    The cost is printed first, at most, with its time by a few masks; --dry-run stops there. After an interruption
    the same command resumes: measurements are kept in OUT/store.sqlite, and finished steps are not run again.

    Examples:
      cs-heads reproduce --paper cs --model demo --quick --out cs-demo
      cs-heads reproduce --paper chg --model demo --quick --steps kinds,shares --out chg-demo
      cs-heads reproduce --paper cs --model meta-llama/Llama-3.1-8B-Instruct --allow-code --out cs-8b --dry-run
      cs-heads reproduce --paper chg --model meta-llama/Llama-3.2-1B --model meta-llama/Llama-3.2-3B --out chg-llama
      cs-heads reproduce --paper cs --model FOLDER --data DIR --tasks gsm8k,boolq,rhyming=my_rhymes.jsonl --out mine
    """
    from cs_heads.reproduce import PAPERS, side_by_side
    from cs_heads.reproduce.run import steps_of

    steps_of(options.paper, _parts(options.steps))
    folders = options.folders
    check_out(options.out)
    failed: dict[str, str] = {}
    for name, folder in folders.items():
        try:
            _of_model(options, name, folder)
        except (ValueError, OSError) as error:
            # One that cannot be loaded, as without a login, ends no other.
            if len(folders) - len(failed) == 1:
                raise
            failed[name] = str(error)
    done = {name: folder for name, folder in folders.items() if name not in failed}
    if len(folders) > 1 and not options.dry_run:
        left_out = side_by_side(PAPERS[options.paper], done, options.out)
        _print_written(options.out, failed | left_out)


def _of_model(options: ReproduceFlags, name: str, out: Path) -> None:
    """The protocol on one model, which is freed before the next is loaded."""
    from tqdm import tqdm

    from cs_heads import reproduce as protocol
    from cs_heads.progress import expect, one_bar
    from cs_heads.reproduce.run import steps_of

    names = _parts(options.steps)
    repro = _reproduction(options, name, out)
    timed = options.dry_run or not options.quick
    found = protocol.estimate(repro, steps_of(options.paper, names), timed=timed)
    _print_estimate(repro, found)
    if options.dry_run:
        return
    write_config(options)
    with one_bar("reproduce"):
        expect(int(found["example-evaluations"].sum()))
        # A line does not break the bar.
        left_out = protocol.reproduce(repro, names, say=lambda line: tqdm.write(line, file=sys.stderr))
    _print_written(out, left_out)


def _print_written(out: Path, left_out: dict[str, str]) -> None:
    for name, reason in left_out.items():
        print(f"left out {name}: {reason}")
    print(f"written: {out / 'index.md'}")


def _reproduction(options: ReproduceFlags, name: str, out: Path) -> Reproduction:
    import cs_heads as cs
    from cs_heads.reproduce import PAPERS, PaperSettings, Reproduction, load_tasks
    from cs_heads.reproduce.papers import QUICK
    from cs_heads.settings import Settings, SettingsArguments

    paper = PAPERS[options.paper]
    settings = QUICK if options.quick else PaperSettings()
    given = {
        name: getattr(options, name) for name in ("n", "n_unseen", "k", "budget", "n_seeds", "n_rule_seeds", "n_pairs")
    }
    given |= {"n_masks": _numbers("n_masks", options.n_masks, int), "steps": options.fit_steps}
    settings = settings.changed(**given, densities=_numbers("densities", options.densities, float))
    names = _parts(options.tasks)
    chosen: dict[str, Any] = {name: getattr(options, name) for name in _LOADING}
    tasks, left_out = load_tasks(paper, name, names, n=settings.n, **chosen)
    dtype = options.dtype or default_dtype(options.device)
    announce(f"loading {name} ...", options.progress)
    model = cs.load_model(name, device=options.device, dtype=dtype, backend=options.backend)
    measured = ("prepend_bos", "batch_tokens", "progress")
    measures = {name: value for name in measured if (value := getattr(options, name)) is not None}
    Settings.of(measures)
    measuring = cast(SettingsArguments, measures)
    return Reproduction(model, paper, tasks, settings, out, options.seed, measuring, left_out)


def default_dtype(device: str | None) -> str | None:
    """The dtype that the papers' models ran in, bfloat16, on a GPU; elsewhere that of ``load_model``.

    Args:
        device: As ``--device`` names it.
    """
    from cs_heads.lens.load import device_named

    return "bfloat16" if (device or device_named(None).type).startswith("cuda") else None


def _numbers(name: str, text: str | None, kind: Callable[[str], Any]) -> tuple[Any, ...] | None:
    if text is None:
        return None
    try:
        return tuple(map(kind, _parts(text) or ()))
    except ValueError:
        raise ValueError(f"{name} must be numbers with commas between, got {text!r}") from None


def _parts(text: str | None) -> list[str] | None:
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


def _print_estimate(repro: Reproduction, found: pd.DataFrame) -> None:
    print(f"{repro.paper.title} (arXiv {repro.paper.arxiv}) on {repro.model.cfg.model_name}\n")
    print(f"{'task of the paper':<34}measured with")
    for name, task in repro.tasks.items():
        print(f"{name:<34}{task.name}, {len(task)} finding examples, {len(repro.unseen(name))} unseen")
    for name, reason in repro.left_out.items():
        print(f"{name:<32}  left out: {reason}")
    print()
    made = found[found["missing"] == ""]
    print_steps(*(dict(zip(made["step"], made[each], strict=True)) for each in ("example-evaluations", "seconds")))
    for step, reason in found.loc[found["missing"] != "", ["step", "missing"]].to_numpy().tolist():
        print(f"{step} cannot be made: {reason}")
    print(flush=True)
