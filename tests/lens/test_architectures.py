"""Every causal architecture that TransformerLens loads: exact against plain Hugging Face, or refused in one line."""

import inspect
import re
from contextlib import ExitStack

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

import cs_heads as cs

# Whatever a configuration calls its sizes.
SIZES = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "word_embed_proj_dim", "embed_dim"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "num_global_key_value_heads"), 2),
    **dict.fromkeys(("intermediate_size", "n_inner", "d_ff", "mlp_hidden_size"), 48),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "shared_intermediate_size"), 16),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("head_dim", "v_head_dim", "kv_channels", "global_head_dim", "attention_head_dim"), 8),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "n_ctx"), 256),
    **dict.fromkeys(("num_experts_per_tok", "moe_k"), 2),
    **dict.fromkeys(("n_shared_experts", "n_group", "topk_group", "first_k_dense_replace", "eos_token_id"), 1),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "query_pre_attn_scalar", "hidden_size_per_layer_input"), 8),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "rotary_dim"), 4),
    **dict.fromkeys(("sliding_window", "attention_window"), 16),
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), 258),
    "ffn_dim": 128,
    "bos_token_id": 0,
    "pad_token_id": 1,
}
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8}
OWN = {
    "bamba": MAMBA,
    "falcon": {"alibi": False},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 16},
    "granitemoehybrid": MAMBA,
    "lfm2": {"block_auto_adjust_ff_dim": False},
    "phi": {"partial_rotary_factor": 0.5},
    "qwen3_next": {"layer_types": ["full_attention", "full_attention"]},
    "stablelm": {"partial_rotary_factor": 0.5},
}
# Left out are models of pictures and text, and state spaces whose sizes hang together: these have no z in every layer.
KINDS = [
    *("afmoe", "apertus", "arcee", "bamba", "bert", "bitnet", "bloom", "codegen", "cohere", "cohere2"),
    *("deepseek_v2", "deepseek_v3", "ernie4_5", "ernie4_5_moe", "exaone4", "falcon", "falcon_mamba", "flex_olmo"),
    *("gemma", "gemma2", "gemma3_text", "gemma4_text", "glm", "glm4", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa"),
    *("gpt-sw3", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gpt_oss", "gptj", "granite", "granitemoe"),
    *("granitemoehybrid", "hrm_text", "hunyuan_v1_dense", "internlm3", "jais2", "jamba", "jetmoe", "laguna"),
    *("lfm2", "llama", "llama4_text", "mamba", "minimax_m2", "ministral3", "mistral", "mixtral"),
    *("modernbert-decoder", "mpt", "nanochat", "nemotron", "olmo", "olmo2", "olmo3", "olmo_hybrid", "olmoe"),
    *("openai-gpt", "opt", "phi", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_5_moe_text", "qwen3_5_text"),
    *("qwen3_moe", "qwen3_next", "recurrent_gemma", "rwkv", "seed_oss", "smollm3", "stablelm", "starcoder2"),
    *("vaultgemma", "xglm", "youtu"),
]
# What has no z of each head in every layer, or reads both ways.
REFUSED = {
    *("bamba", "bert", "falcon_mamba", "granitemoehybrid", "hrm_text", "jamba", "jetmoe", "mamba", "olmo_hybrid"),
    *("qwen3_5_moe_text", "qwen3_5_text", "recurrent_gemma", "rwkv"),
    *("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "glm_moe_dsa", "youtu"),
}
PROMPTS = ("The cat sat\n", "Q: one two three?\nA: ", "a", "Who is there?\n\n", "long " * 6)
TARGETS = ("on", "four", " bc", "I", " end")
OUT = re.compile(r"(att|attn|mixer)\w*(\.\w+)?\.(o_proj|c_proj|out_proj|dense|wo|Wo)$")
MLP_OUT = re.compile(r"\.(down_proj|c_proj|dense_4h_to_h|fc2|fc_out|fc_in|w2|Wo|wo)$")


def bytes_tokenizer():
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE({letter: i for i, letter in enumerate(["<s>", "</s>", *letters])}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>")


def save_tiny(kind, name, folder):
    config = transformers.CONFIG_MAPPING[kind]
    known = {*config.attribute_map}.union(*(getattr(base, "__annotations__", ()) for base in config.__mro__))
    known |= {*inspect.signature(config.__init__).parameters}
    sizes = {size: n for size, n in SIZES.items() if size in known and config.attribute_map.get(size) not in known}
    torch.manual_seed(0)
    model = getattr(transformers, name)(config(**sizes, **OWN.get(kind, {})))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.15 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    bytes_tokenizer().save_pretrained(folder)


def projections(plain, pattern):
    """The module of each layer that takes what its units give."""
    named = [(path, each) for path, each in plain.named_modules() if pattern.search(path) and hasattr(each, "weight")]
    if pattern is MLP_OUT:
        named = [(path, each) for path, each in named if not OUT.search(path)]
    return {int(re.search(r"\.(\d+)\.", path)[1]): each for path, each in named}


def plain_logprob(plain, modules, prompt, target, mask, where):
    """Mean log-probability of the target (nats per token), slices of what the modules take being zeroed."""

    def zero(row):
        def hook(module, arguments):
            value = arguments[0].clone()
            width = value.shape[-1] // len(row)
            at = [i for i in where if i < value.shape[-2]]
            for unit in np.flatnonzero(row):
                value[..., at, unit * width : (unit + 1) * width] = 0
            return (value, *arguments[1:])

        return hook

    with ExitStack() as stack, torch.no_grad():
        for layer, row in enumerate(mask):
            stack.callback(modules[layer].register_forward_pre_hook(zero(row)).remove)
        logits = plain(torch.tensor([[*prompt, *target]]), use_cache=False).logits[0].double()
    read = logits[len(prompt) - 1 : -1].log_softmax(-1)
    return read[range(len(target)), target].mean().item()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_an_architecture_is_exact_or_refused_in_one_line(kind, tmp_path):
    registry = pytest.importorskip("transformer_lens.factories.architecture_adapter_factory")
    name = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind]
    if name not in registry.SUPPORTED_ARCHITECTURES:
        pytest.skip(f"this TransformerLens loads no {name}")
    save_tiny(kind, name, tmp_path)
    if kind in REFUSED:
        with pytest.raises(ValueError, match=r"\Amodel .*\Z"):
            cs.load_model(tmp_path)
        return
    model = cs.load_model(tmp_path)
    eager = {"attn_implementation": "eager", "dtype": torch.float32}
    plain = getattr(transformers, name).from_pretrained(tmp_path, **eager).eval()
    tokenizer = bytes_tokenizer()

    def ids(text):
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    records = [{"prompt": prompt, "target": target} for prompt, target in zip(PROMPTS, TARGETS, strict=True)]
    task = cs.Task.from_records(records, "words")
    of_experts = any("expert" in size and getattr(plain.config, size, None) for size in SIZES)
    rng = np.random.default_rng(0)
    for units in ("heads", "kv") if of_experts else ("heads", "kv", "neurons"):
        modules = projections(plain, MLP_OUT if units == "neurons" else OUT)
        for positions in ("all", "last", "prompt"):
            experiment = cs.Experiment(model, task, units=units, positions=positions)
            masks = rng.random((3, *experiment.grid.shape)) < 0.3
            for mask, of_mask in zip(masks, experiment.logprob(masks), strict=True):
                for prompt, target, logprob in zip(PROMPTS, TARGETS, of_mask, strict=True):
                    tokens = ids(prompt)
                    n = len(tokens)
                    where = {"all": range(10**4), "last": [n - 1], "prompt": range(n)}[positions]
                    right = plain_logprob(plain, modules, tokens, ids(target), mask, where)
                    assert logprob == pytest.approx(right, abs=1e-4), (units, positions, prompt)
