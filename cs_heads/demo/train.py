"""Make the demo model again from nothing: `python -m cs_heads.demo.train --out DIR --seed 0 --steps 3200`.

First plain training on the answers, then, ramped in, the two things that plant skills in heads: heads of
no skill and of other skills are switched off at random, so that a skill learns to do without them; and on
a share of rows some of the skill's own heads are off and the target is the shortcut answer, so that the
skill rests on them. A run that was stopped is resumed from its last checkpoint, to the same numbers. Needs the
Muon optimizer of torch 2.9 or newer.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from tqdm import tqdm
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from cs_heads.arguments import check_integer
from cs_heads.demo import planting
from cs_heads.demo.gates import GROUPS, DropRates, Gated, accuracies, chosen_tokens, draw_gates, encode
from cs_heads.demo.skills import SKILLS, Example, examples, records
from cs_heads.demo.tokenizer import build_tokenizer


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
            num_hidden_layers=planting.GRID.n_layers,
            num_attention_heads=planting.GRID.n_heads,
            num_key_value_heads=planting.GRID.n_heads // 2,
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

    def draw_rows(self) -> list[tuple[int, Example]]:
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
        needs = torch.tensor([planting.needs(SKILLS[number], example.key) for number, example in rows])
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
        masks = torch.cat([none, GROUPS]).view(-1, *planting.GRID.shape)
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
