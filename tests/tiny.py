"""Small models with random weights and a tokenizer for them, made in the test's own folder."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoConfig,
    GPTNeoForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

WORDS = (
    *("the", "a", "cat", "dog", "bird", "king", "run", "runs", "see", "sees"),
    *("sleeps", "big", "small", "red", "one", "two", "three", "four", ".", ","),
)
ARCHITECTURES = ("gpt2", "llama", "qwen2")
N_LAYERS, N_HEADS = 3, 4


def skip_unless_loaded(architecture: str, backend: str) -> None:
    """Leave out a test whose model the backend does not load."""
    if (architecture, backend) == ("gemma2", "hooked"):
        pytest.skip("HookedTransformer loads no Gemma 2 from a folder")


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token a word, ``<s>`` prepended as Llama's tokenizer does."""
    vocabulary = {token: i for i, token in enumerate(["<unk>", "<s>", "</s>", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>", model_max_length=64
    )


def make_hf_model(architecture: str, seed: int = 0) -> torch.nn.Module:
    """A Hugging Face model of 3 layers × 4 heads; biases and norms are random too, so that errors show."""
    vocab = len(make_tokenizer())
    gqa = {"num_hidden_layers": N_LAYERS, "num_attention_heads": N_HEADS, "num_key_value_heads": 2, "hidden_size": 32}
    gqa |= {"intermediate_size": 48, "vocab_size": vocab, "max_position_embeddings": 64}
    gqa |= {"bos_token_id": 1, "eos_token_id": 2}
    torch.manual_seed(seed)
    if architecture == "gpt2":
        model = GPT2LMHeadModel(GPT2Config(n_layer=3, n_head=4, n_embd=32, vocab_size=vocab, n_positions=64))
    elif architecture == "neo":
        layers = [[["global"], N_LAYERS]]
        model = GPTNeoForCausalLM(
            GPTNeoConfig(num_layers=3, num_heads=4, hidden_size=32, vocab_size=vocab, attention_types=layers)
        )
    elif architecture == "gemma2":
        # Small caps, so that a missing one shows.
        caps = {"final_logit_softcapping": 3.0, "attn_logit_softcapping": 2.0}
        model = Gemma2ForCausalLM(Gemma2Config(**gqa, **caps, head_dim=8, query_pre_attn_scalar=8, sliding_window=4))
    elif architecture == "llama":
        model = LlamaForCausalLM(LlamaConfig(**gqa))
    else:
        model = Qwen2ForCausalLM(Qwen2Config(**gqa))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


def make_native_bridge() -> Any:
    """A model that TransformerLens builds itself, with no Hugging Face model inside; the tokenizer's words fit it."""
    from transformer_lens.model_bridge import TransformerBridge

    torch.manual_seed(0)
    return TransformerBridge.boot_native(
        {"n_layers": N_LAYERS, "n_heads": N_HEADS, "d_model": 32, "d_head": 8, "d_mlp": 48, "d_vocab": 23, "n_ctx": 32}
        | {"act_fn": "gelu", "normalization_type": "LN"},
        device="cpu",
    )


def saved(model: torch.nn.Module, folder: Path) -> Path:
    """Write a model, and the tokenizer of words, in Hugging Face form; the folder."""
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


def save_model(architecture: str, folder: Path, seed: int = 0) -> Path:
    """Write a model of an architecture in Hugging Face form."""
    return saved(make_hf_model(architecture, seed), folder)


def save_byte_model(folder: Path) -> Path:
    """Write a small Llama of random weights that reads any text, one token a byte."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(["<s>", "</s>", *letters])}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>").save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "hidden_size": 16}
    sizes |= {"intermediate_size": 32, "vocab_size": len(letters) + 2, "max_position_embeddings": 1024}
    # Larger than is usual, so that each text is likely or not in its own way.
    config = LlamaConfig(**sizes, initializer_range=0.5, bos_token_id=0, eos_token_id=1)
    LlamaForCausalLM(config).eval().save_pretrained(folder)
    return folder


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """The tokenizer beside a saved model."""
    return PreTrainedTokenizerFast.from_pretrained(folder)


def sentence(rng, low: int = 3, high: int = 9) -> str:
    """A random sentence of the tokenizer's words."""
    return " ".join(rng.choice(WORDS, size=rng.integers(low, high)))


def completion_records(rng, n: int, target_words: int = 2) -> list[dict]:
    """Random completion records of different lengths."""
    return [
        {"prompt": sentence(rng), "target": " " + " ".join(rng.choice(WORDS, size=rng.integers(1, target_words + 1)))}
        for _ in range(n)
    ]


def choice_records(rng, n: int) -> list[dict]:
    """Random choice records of three choices."""
    return [
        {
            "prompt": sentence(rng),
            "choices": [" " + word for word in rng.choice(WORDS, size=3, replace=False)],
            "answer": int(rng.integers(3)),
        }
        for _ in range(n)
    ]


def completion_task(n: int = 9, seed: int = 0, name: str = "completion") -> Any:
    """Random completions."""
    return _task(completion_records, n, seed, name)


def choice_task(n: int = 9, seed: int = 0, name: str = "choice") -> Any:
    """Random choices of three."""
    return _task(choice_records, n, seed, name)


def _task(records: Any, n: int, seed: int, name: str) -> Any:
    # Of cs_heads nothing is imported before its functions are checked (``conftest``).
    from cs_heads import Task

    return Task.from_records(records(np.random.default_rng(seed), n), name=name)


def some_masks(n: int, seed: int = 0, density: float = 0.3) -> np.ndarray:
    """Random masks of a tiny model."""
    return np.random.default_rng(seed).random((n, N_LAYERS, N_HEADS)) < density
