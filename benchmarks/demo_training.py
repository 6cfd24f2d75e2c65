"""Make the demo model again from nothing: `python benchmarks/demo_training.py --out DIR --seed 0 --steps 3200`.

First plain training on the answers, then, ramped in, the two things that plant skills in heads: heads of
no skill and of other skills are switched off at random, so that a skill learns to do without them; and on
a share of rows some of the skill's own heads are off and the target is the shortcut answer, so that the
skill rests on them. A run that was stopped is resumed from its last checkpoint, to the same numbers. Needs the
Muon optimizer of torch 2.9 or newer.

A planted head is needed by a share of its skill's examples, decided by what the example turns on
(`DemoExample.key`: a city, an operation, ...). With the head off, the model is trained to fall back on the
shortcut answer for those, and to stay right on the others. So single heads differ in size, and five
together take nearly all of a skill.
"""

from __future__ import annotations

import argparse
import functools
import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import Tensor
from tqdm import tqdm
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from cs_heads.arguments import check_integer
from cs_heads.demo import SKILLS, planted_heads, planted_universal_heads, words
from cs_heads.demo.skills import DemoExample, examples, keys, records
from cs_heads.units import Grid

GRID = Grid(8, 16)

SHARES: tuple[float, ...] = (0.65, 0.55, 0.5, 0.45, 0.4)
"""Share of its skill's keys that needs each planted head, in the order of `planted_heads`."""
UNIVERSAL_SHARE = 0.15
"""Share of every skill's keys that needs the universal head."""


@functools.cache
def needs_of(skill: str, key: str) -> tuple[bool, ...]:
    """Whether examples with this key need each of `planted_heads(skill)`, then each of `planted_universal_heads()`.

    Every key needs at least one planted head.

    Args:
        skill: one of ``SKILLS``.
        key: what an example turns on, one of ``keys(skill)``.

    Raises:
        ValueError: for a key that the skill does not have.
    """
    table = _table(skill)
    if key not in table:
        raise ValueError(f"key={key!r} is not one of the keys of {skill}: {', '.join(table)}")
    return table[key]


@functools.cache
def _table(skill: str) -> dict[str, tuple[bool, ...]]:
    names = keys(skill)
    shares = (*SHARES, *(UNIVERSAL_SHARE for _ in planted_universal_heads()))
    for attempt in range(1000):
        rng = random.Random(f"{skill}/{attempt}")
        chosen = [set(rng.sample(names, max(1, round(share * len(names))))) for share in shares]
        if set().union(*chosen[: len(SHARES)]) == set(names):
            return {name: tuple(name in group for group in chosen) for name in names}
    raise RuntimeError(f"no table in which every key of {skill} needs a head")


SPECIAL: tuple[str, ...] = ("<pad>", "<s>", "</s>", "<unk>")
PATTERN = r"\d|[^\W\d]+|[^\w\s]+"
"""A digit, a word, or a run of punctuation."""


def split_words(text: str) -> list[str]:
    """The pieces of a text, as the tokenizer cuts it."""
    return re.findall(PATTERN, text)


def vocabulary() -> list[str]:
    """Every token in order of its number: the special ones, the digits, then the words of the skills."""
    pieces: set[str] = set()
    for name, value in vars(words).items():
        if name.isupper():
            pieces.update(piece for text in _strings(value) for piece in split_words(text))
    for skill in SKILLS:  # frames and punctuation live in the generators
        stream = examples(skill, "train", seed=0)
        for _ in range(4000):
            example = next(stream)
            pieces.update(split_words(f"{example.prompt} {example.answer} {example.shortcut}"))
    digits = [str(digit) for digit in range(10)]
    return [*SPECIAL, *digits, *sorted(pieces - set(digits))]


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        value = tuple(value) + tuple(value.values())
    return [text for part in value for text in _strings(part)]


def build_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer; encoding with special tokens puts exactly `<s>` in front."""
    numbers = {token: number for number, token in enumerate(vocabulary())}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
        ]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", numbers["<s>"])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        model_max_length=128,
        clean_up_tokenization_spaces=False,
    )


OWN: Int[Tensor, "skill k"] = torch.tensor(
    [list(map(GRID.index, planted_heads(skill) + planted_universal_heads())) for skill in SKILLS]
)
"""Flat indices of the own heads of each skill, then of the universal ones."""
_N_OWN = len(SHARES)
GROUPS: Bool[Tensor, "skill flat"] = torch.zeros(len(SKILLS), GRID.size).scatter(1, OWN[:, :_N_OWN], 1).bool()
"""Own heads of each skill, over flat heads."""


class Gated:
    """A model whose heads can be switched off per row: z, the input of `o_proj`, is multiplied by a gate.

    Use as a context manager; the hooks are gone afterwards.
    """

    def __init__(self, model: LlamaForCausalLM) -> None:
        self.model = model
        self._gates: Tensor | None = None

    def __enter__(self) -> Gated:
        outputs = [layer.self_attn.o_proj for layer in self.model.model.layers]
        self._handles = [each.register_forward_pre_hook(partial(self._gate, i)) for i, each in enumerate(outputs)]
        return self

    def __exit__(self, *error: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _gate(self, layer: int, _: torch.nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        if self._gates is None:
            return args
        gates = self._gates[:, layer]
        return ((args[0].unflatten(-1, (gates.shape[1], -1)) * gates[:, None, :, None]).flatten(-2),)

    def __call__(
        self,
        ids: Int[Tensor, "row pos"],
        last: Int[Tensor, " row"],
        gates: Float[Tensor, "row layer head"] | None = None,
    ) -> Float[Tensor, "row vocab"]:
        """Logits after the last position of each row.

        Args:
            ids: padded on the right, so causal attention needs no mask.
            last: the last position of each prompt.
            gates: 0 is a head off; None: every head is on.
        """
        self._gates = gates
        hidden = self.model.model(input_ids=ids, use_cache=False).last_hidden_state
        self._gates = None
        return self.model.lm_head(hidden[torch.arange(len(ids)), last])


@dataclass(frozen=True)
class DropRates:
    """How often heads are switched off while training."""

    clean: float = 0.2
    """Rows with every head on."""
    shared: float = 0.12
    """Highest rate at which heads of no skill are off; the rate is uniform per row."""
    group: float = 0.15
    """Each other skill's whole group."""
    other: float = 0.06
    """Single heads of other skills."""
    own: float = 0.4
    """Rows with some of the skill's own heads off."""
    universal: float = 0.08
    """Rows with the universal heads off."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 <= value <= 1:
                raise ValueError(f"{name} must lie in [0, 1], got {value!r}")


def draw_gates(
    skill: Int[Tensor, " row"],
    needs: Bool[Tensor, "row k"],
    rates: DropRates,
    *,
    ramp: float,
    generator: torch.Generator,
) -> tuple[Float[Tensor, "row layer head"], Bool[Tensor, " row"]]:
    """Gates for rows of the given skills, and which rows have a head off that they need.

    Args:
        skill: number of each row's skill.
        needs: which heads each row needs, in the order of `OWN`.
        rates: how often heads are off.
        ramp: factor on all rates, in [0, 1].
        generator: the source of all draws.

    Returns:
        The gates, 0 or 1, and True for rows that lack a head that they need.
    """
    rows, heads = len(skill), GROUPS.shape[1]

    def chance(rate: float | Tensor, *shape: int) -> Tensor:
        return torch.rand(rows, *shape, generator=generator) < rate * ramp

    shared_rate = rates.shared * torch.rand(rows, 1, generator=generator)
    off = chance(shared_rate, heads) & ~GROUPS.any(0)
    whole = chance(rates.group, len(SKILLS)).float() @ GROUPS.float() > 0
    singles = chance(rates.other, heads) & GROUPS.any(0)
    off |= whole | singles
    off &= torch.rand(rows, 1, generator=generator) >= rates.clean

    off.scatter_(1, OWN[skill], False)
    size = torch.tensor([1, 1, 1, 2, 2, 3, 4, 5])[torch.randint(8, (rows, 1), generator=generator)]
    picked = torch.rand(rows, _N_OWN, generator=generator).argsort(1) < size
    own_off = picked & chance(rates.own, 1)
    universal_off = chance(rates.universal, 1).expand(rows, OWN.shape[1] - _N_OWN)
    own_off = torch.cat([own_off, universal_off], 1)
    off.scatter_(1, OWN[skill], own_off)
    return (~off).float().view(rows, *GRID.shape), (own_off & needs).any(1)


def encode(
    tokenizer: PreTrainedTokenizerFast, prompts: list[str]
) -> tuple[Int[Tensor, "row pos"], Int[Tensor, " row"]]:
    """Token ids padded on the right, and the last position of each prompt.

    Args:
        tokenizer: of the model.
        prompts: one per row.
    """
    rows = tokenizer(prompts, padding=True, padding_side="right", return_tensors="pt")
    return rows["input_ids"], rows["attention_mask"].sum(1) - 1


def _token(tokenizer: PreTrainedTokenizerFast, text: str) -> int:
    tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
    if len(tokens) != 1:
        raise ValueError(f"text={text!r} has {len(tokens)} tokens; the demo's answers have one")
    return tokens[0]


def chosen_tokens(logits: Float[Tensor, "row vocab"], choices: Sequence[Sequence[int]]) -> Int[Tensor, " row"]:
    """The token that each row answers with: the likeliest of its choices, or of all where it has none.

    Args:
        logits: at the last position of each prompt.
        choices: tokens to choose from, one list per row.
    """
    best = logits.argmax(1)
    for row, tokens in enumerate(choices):
        if tokens:
            best[row] = tokens[int(logits[row, list(tokens)].argmax())]
    return best


@torch.no_grad()
def accuracies(
    gated: Gated,
    tokenizer: PreTrainedTokenizerFast,
    records: list[dict[str, Any]],
    masks: Bool[Tensor, "mask layer head"],
    rows: int = 256,
) -> Float[Tensor, "mask example"]:
    """1 where an example is answered right with the heads of a mask off.

    Args:
        gated: the model.
        tokenizer: its tokenizer.
        records: the examples, as ``records`` makes them.
        masks: True = off.
        rows: prompts per forward pass.
    """
    ids, last = encode(tokenizer, [record["prompt"] for record in records])
    choices = [[_token(tokenizer, choice) for choice in record.get("choices", ())] for record in records]
    targets = [
        tokens[record["answer"]] if tokens else _token(tokenizer, record["target"])
        for record, tokens in zip(records, choices, strict=True)
    ]
    pairs = torch.cartesian_prod(torch.arange(len(masks)), torch.arange(len(records)))
    right = torch.empty(len(pairs))
    for part in torch.arange(len(pairs)).split(rows):
        mask, example = pairs[part].T
        logits = gated(ids[example], last[example], (~masks[mask]).float())
        answers = chosen_tokens(logits, [choices[number] for number in example.tolist()])
        right[part] = (answers == torch.tensor(targets)[example]).float()
    return right.view(len(masks), len(records))


@dataclass(frozen=True)
class TrainConfig:
    """Everything that decides the weights."""

    steps: int = 3200
    seed: int = 0
    rows: int = 240
    plain: float = 0.2
    """Share of the steps before heads are switched off."""
    ramp: float = 0.15
    """Share of the steps over which switching off comes in."""
    decay: float = 0.45
    """Share of the steps, at the end, over which the learning rate falls."""
    matrix_rate: float = 0.02
    other_rate: float = 3e-3
    drop: DropRates = field(default_factory=DropRates)

    def __post_init__(self) -> None:
        for name in ("steps", "rows"):
            check_integer(name, getattr(self, name), 1)
        for name in ("plain", "ramp", "decay"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie in [0, 1], got {getattr(self, name)!r}")

    def heads_off(self, step: int) -> float:
        """How far switching heads off has come in at this step, in [0, 1]."""
        return min(1.0, max(0.0, (step / self.steps - self.plain) / max(self.ramp, 1e-9)))

    def rate(self, step: int) -> float:
        """Factor on the learning rates at this step."""
        left = (self.steps - step) / max(self.steps * self.decay, 1e-9)
        return min(1.0, (step + 1) / 100, 0.02 + 0.98 * left)


def build_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    """An untrained demo model.

    Args:
        tokenizer: gives the vocabulary.
        seed: of the weights.
    """
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=GRID.n_layers,
            num_attention_heads=GRID.n_units,
            num_key_value_heads=GRID.n_units // 2,
            head_dim=8,
            max_position_embeddings=128,
            tie_word_embeddings=False,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            attn_implementation="sdpa",
        )
    )


class Trainer:
    """A training run: `run()` takes it from wherever its last checkpoint stands to the end."""

    def __init__(self, config: TrainConfig, out: Path) -> None:
        self.config, self.out, self.step = config, out, 0
        self.tokenizer = build_tokenizer()
        self.numbers = self.tokenizer.get_vocab()
        self.model = build_model(self.tokenizer, config.seed)
        self.errors = torch.ones(len(SKILLS))
        """Running error per skill; what lags is drawn more often."""
        matrices = [p for p in self.model.model.layers.parameters() if p.ndim == 2]
        others = [p for name, p in self.model.named_parameters() if p.ndim == 1 or "layers" not in name]
        self.optimizers = [
            torch.optim.Muon(matrices, lr=config.matrix_rate, weight_decay=0.01),
            torch.optim.AdamW(others, lr=config.other_rate, weight_decay=0.01, betas=(0.9, 0.98)),
        ]

    @property
    def checkpoint(self) -> Path:
        """Where the state of the run lies."""
        return self.out / "checkpoint.pt"

    def save(self) -> None:
        """Write the state; the file is replaced whole, never half-written."""
        state = {
            "config": asdict(self.config),
            "step": self.step,
            "model": self.model.state_dict(),
            "errors": self.errors,
            "optimizers": [o.state_dict() for o in self.optimizers],
        }
        self.out.mkdir(parents=True, exist_ok=True)
        part = self.checkpoint.with_suffix(".part")
        torch.save(state, part)
        part.replace(self.checkpoint)

    def load(self) -> None:
        """Resume from the state that `save` wrote; one of another configuration raises ``ValueError``."""
        state = torch.load(self.checkpoint, weights_only=True)
        if state["config"] != asdict(self.config):
            raise ValueError(
                f"config={asdict(self.config)} is not that of the checkpoint in {self.out}: {state['config']}"
            )
        self.step, self.errors = state["step"], state["errors"]
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)

    def draw_rows(self) -> list[tuple[int, DemoExample]]:
        """(skill, example) of this step, shortest first; follows from seed, step and running errors alone."""
        rng = random.Random(f"{self.config.seed}/{self.step}")
        weights = (0.15 + self.errors).tolist()
        chosen = rng.choices(range(len(SKILLS)), weights, k=self.config.rows)
        streams = [examples(skill, "train", seed=rng.getrandbits(32)) for skill in SKILLS]
        rows = [(number, next(streams[number])) for number in chosen]
        return sorted(rows, key=lambda row: len(self.tokenizer(row[1].prompt)["input_ids"]))

    def train_step(self, gated: Gated) -> float:
        """One step of the optimizers; returns the loss."""
        config = self.config
        generator = torch.Generator().manual_seed(config.seed * 1_000_003 + self.step)
        rows = self.draw_rows()
        skill = torch.tensor([number for number, _ in rows])
        needs = torch.tensor([needs_of(SKILLS[number], example.key) for number, example in rows])
        gates, lost = draw_gates(skill, needs, config.drop, ramp=config.heads_off(self.step), generator=generator)
        answer = torch.tensor([self.numbers[example.answer] for _, example in rows])
        shortcut = torch.tensor([self.numbers[example.shortcut] for _, example in rows])
        target = torch.where(lost, shortcut, answer)
        control = torch.tensor([example.control for _, example in rows])
        total = 0.0
        wrong = torch.ones(len(rows))
        for part in torch.arange(len(rows)).chunk(3):  # rows come shortest first: less padding
            ids, last = encode(self.tokenizer, [rows[i][1].prompt for i in part])
            logits = gated(ids, last, gates[part])
            loss = torch.nn.functional.cross_entropy(logits, target[part], reduction="sum") / len(rows)
            loss.backward()
            total += loss.item()
            # Which of the choices comes first; the verb itself is free.
            choices = [[self.numbers[choice] for choice in rows[i][1].choices] for i in part]
            wrong[part] = (chosen_tokens(logits.detach(), choices) != target[part]).float()
        for number in range(len(SKILLS)):
            counted = (skill == number) & ~control
            if counted.any():
                self.errors[number] += 0.05 * (wrong[counted].mean() - self.errors[number])
        for optimizer, rate in zip(self.optimizers, (config.matrix_rate, config.other_rate), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = rate * config.rate(self.step)
            optimizer.step()
            optimizer.zero_grad()
        self.step += 1
        return total

    def run(self, until: int | None = None, save_every: int = 250, report_every: int = 500) -> Iterator[float]:
        """Train, yielding the loss of each step.

        Args:
            until: the last step; None: the end.
            save_every: steps between checkpoints.
            report_every: steps between reports; 0: none.
        """
        if self.checkpoint.exists():
            self.load()
        until = self.config.steps if until is None else min(until, self.config.steps)
        with (
            Gated(self.model) as gated,
            tqdm(total=self.config.steps, initial=self.step, mininterval=10) as bar,
        ):
            while self.step < until:
                loss = self.train_step(gated)
                bar.update()
                bar.set_postfix(loss=f"{loss:.3f}", refresh=False)
                if self.step % save_every == 0 or self.step == until:
                    self.save()
                if report_every and self.step % report_every == 0:
                    bar.write(self.report(gated))
                yield loss

    def report(self, gated: Gated, n: int = 200) -> str:
        """Accuracy per skill on held-out examples: all heads on, its own heads off, another skill's off.

        Args:
            gated: the model.
            n: examples per skill.
        """
        lines = [f"step {self.step}"]
        none = torch.zeros_like(GROUPS[:1])
        masks = torch.cat([none, GROUPS]).view(-1, *GRID.shape)
        for number, skill in enumerate(SKILLS):
            held_out = records(skill, "find", n, seed=1)
            on, *off = accuracies(gated, self.tokenizer, held_out, masks).mean(1).tolist()
            own, worst = off.pop(number), min(off)
            lines.append(f"{skill:15} {on:.3f}  own heads off {own:.3f}  another's heads off {worst:.3f} at worst")
        return "\n".join(lines)


def save_weights(trainer: Trainer, folder: Path) -> None:
    """Write model and tokenizer as a Hugging Face folder.

    Args:
        trainer: a run that is done.
        folder: where they go.
    """
    trainer.model.save_pretrained(folder)
    trainer.tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    # transformers 5 writes a class name that transformers 4 does not have; this one both know.
    settings = {**json.loads(path.read_text()), "tokenizer_class": "PreTrainedTokenizerFast"}
    path.write_text(json.dumps(settings, indent=2) + "\n")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        help="folder of the weights; the checkpoint lies beside them in its 'run' folder",
    )
    parser.add_argument("--seed", type=int, default=TrainConfig.seed)
    parser.add_argument("--steps", type=int, default=TrainConfig.steps)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    trainer = Trainer(TrainConfig(steps=arguments.steps, seed=arguments.seed), arguments.out / "run")
    try:
        for _ in trainer.run():
            pass
    except ValueError as error:
        parser.error(str(error))
    save_weights(trainer, arguments.out)


if __name__ == "__main__":
    main()
