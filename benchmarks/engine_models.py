"""The models that ``engine.py`` measures: shapes with random weights, the demo model, a small trained one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from cs_heads import load_task
from cs_heads.lens import EncodedExample, load_model
from cs_heads.lens.load import DEMO
from cs_heads.lens.tokens import encode_prompt
from cs_heads.text import Text
from cs_heads.units import Grid

SHAPES = {
    "gpt2-shape": lambda: GPT2LMHeadModel(GPT2Config()),
    "llama-shape": lambda: LlamaForCausalLM(
        LlamaConfig(
            hidden_size=768,
            intermediate_size=2048,
            num_hidden_layers=12,
            num_attention_heads=12,
            num_key_value_heads=4,
            vocab_size=32_000,
            max_position_embeddings=1024,
        )
    ),
}
LARGE = {
    "llama-8b-shape": lambda: LlamaForCausalLM(
        LlamaConfig(
            hidden_size=4096,
            intermediate_size=14_336,
            num_hidden_layers=32,
            num_attention_heads=32,
            num_key_value_heads=8,
            vocab_size=128_256,
            max_position_embeddings=8192,
        )
    )
}
"""Run on a GPU, in bfloat16."""


class RandomTexts:
    """Texts of random tokens for a bridge."""

    bridge: Any
    grid: Grid
    rng: np.random.Generator

    def text(self, low: int, high: int) -> tuple[int, ...]:
        """Random tokens, ``low..high`` of them."""
        return tuple(self.rng.integers(3, self.bridge.cfg.d_vocab, self.rng.integers(low, high + 1)).tolist())

    def examples(self, n: int, prompt: tuple[int, int], choices: int, shared: int = 0) -> list[EncodedExample]:
        """``n`` prompts of so many tokens after ``shared`` common ones, each with ``choices`` of 1 to 3 tokens."""
        prefix = self.text(shared, shared)
        return [
            EncodedExample(prefix + self.text(*prompt), tuple(self.text(1, 3) for _ in range(choices)), False)
            for _ in range(n)
        ]


class Subject(RandomTexts):
    """A model twice, as Hugging Face and as a bridge, from one folder."""

    def __init__(self, name: str, device: str) -> None:
        self.name, self.small = name, name not in SHAPES | LARGE
        self.folder = folder_of(name)
        dtype = torch.bfloat16 if name in LARGE else torch.float32
        self.hf = AutoModelForCausalLM.from_pretrained(self.folder, attn_implementation="sdpa", dtype=dtype)
        self.hf = self.hf.eval().to(device)
        self.bridge = load_model(str(self.folder), device=device, dtype=dtype)
        self.grid = Grid.from_model(self.bridge)
        self.rng = np.random.default_rng(0)

    def openings(self) -> list[EncodedExample]:
        """Eight texts to go on with: real ones for the models that can, else random tokens."""
        if self.name not in OPENINGS:
            return self.examples(8, (20, 30), choices=1)
        tokenizer = self.bridge.tokenizer
        return [EncodedExample(encode_prompt(tokenizer, text), ((3,),), False) for text in OPENINGS[self.name]()]


def _demo_openings() -> list[Text]:
    tasks = [load_task(f"demo/{skill}", n=20, seed=0) for skill in ("capitals", "copying", "word_problems", "rhyme")]
    return [example.prompt for task in tasks for example in task.examples[:2]]


OPENINGS: dict[str, Callable[[], list[Text]]] = {
    "demo": _demo_openings,
    "stories260K": lambda: [
        f"Once upon a time, there was a {who}. One day, the {who} went to {where}"
        for who in ("little girl", "big dog", "small cat", "boy named Tim")
        for where in ("the park", "the sea")
    ],
}


def folder_of(name: str) -> Path:
    """Where a model lies on the disk, made if need be."""
    if name == "demo":
        return Path(DEMO)
    if name == "stories260K":
        return Path(os.environ.get("CS_HEADS_REAL", "../shared")) / "models" / name
    torch.manual_seed(0)
    folder = Path(tempfile.mkdtemp())
    model = (SHAPES | LARGE)[name]()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(2)  # so that heads matter: at initialisation they hardly do
    model.save_pretrained(folder)
    # A tokenizer of one word: the benchmark speaks in tokens, but models are loaded with one.
    words = Tokenizer(WordLevel({"<unk>": 0}, unk_token="<unk>"))
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", eos_token="<unk>").save_pretrained(folder)
    return folder
