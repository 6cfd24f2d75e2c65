"""Gates on the heads of a Hugging Face Llama, one set per row: random ones for training, and accuracy under masks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from cs_heads.demo import planting
from cs_heads.demo.skills import SKILLS

OWN: Int[Tensor, "skill k"] = torch.tensor(
    [list(map(planting.GRID.index, planting.planted_heads(skill) + planting.universal_heads())) for skill in SKILLS]
)
"""Flat indices of the own heads of each skill, then of the universal ones."""
_N_OWN = len(planting.SHARES)
GROUPS: Bool[Tensor, "skill flat"] = torch.zeros(len(SKILLS), planting.GRID.size).scatter(1, OWN[:, :_N_OWN], 1).bool()
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
    return (~off).float().view(rows, *planting.GRID.shape), (own_off & needs).any(1)


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
