"""Write a two-layer Llama whose next token depends on everything before it: config.json and seeded weights, 1 MB.

    python tiny_model.py FOLDER [SEED]

SGLang's own dummy weights are about 0.001, so that its logits are the same whatever the prompt says: a KV cache that never
crossed from prefill to decode would go unnoticed. Here attention scores have a spread of about 3 (so that single tokens of the
history decide, not their average) and values are as large as the residual stream.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, LAYERS, INNER, VOCAB, CONTEXT = 64, 4, 2, 16, 2, 128, 1000, 32768

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
    "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": LAYERS, "vocab_size": VOCAB,
    "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM,
    "max_position_embeddings": CONTEXT, "rope_theta": 10000.0, "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
    "bos_token_id": 1, "eos_token_id": 2,
    "torch_dtype": "float32",  # so that two ways to the same logits differ by rounding only
}  # fmt: skip


def weights(seed: int) -> dict[str, np.ndarray]:
    """Each matrix keeps the variance of a normalised input times `gain` squared."""
    draw = np.random.default_rng(seed)

    def matrix(rows: int, columns: int, gain: float) -> np.ndarray:
        return (draw.standard_normal((rows, columns)) * gain / np.sqrt(columns)).astype(np.float32)

    out = {
        "model.embed_tokens.weight": draw.standard_normal((VOCAB, HIDDEN)).astype(np.float32),
        "model.norm.weight": np.ones(HIDDEN, np.float32),
        "lm_head.weight": matrix(VOCAB, HIDDEN, 3.0),
    }
    for k in range(LAYERS):
        layer = f"model.layers.{k}"
        out |= {
            f"{layer}.input_layernorm.weight": np.ones(HIDDEN, np.float32),
            f"{layer}.post_attention_layernorm.weight": np.ones(HIDDEN, np.float32),
            f"{layer}.self_attn.q_proj.weight": matrix(HEADS * HEAD_DIM, HIDDEN, 1.75),
            f"{layer}.self_attn.k_proj.weight": matrix(KV_HEADS * HEAD_DIM, HIDDEN, 1.75),
            f"{layer}.self_attn.v_proj.weight": matrix(KV_HEADS * HEAD_DIM, HIDDEN, 2.0),
            f"{layer}.self_attn.o_proj.weight": matrix(HIDDEN, HEADS * HEAD_DIM, 2.0),
            f"{layer}.mlp.gate_proj.weight": matrix(INNER, HIDDEN, 1.0),
            f"{layer}.mlp.up_proj.weight": matrix(INNER, HIDDEN, 1.0),
            f"{layer}.mlp.down_proj.weight": matrix(HIDDEN, INNER, 1.0),
        }
    return out


def write(folder: Path, seed: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / ".weights"
    save_file(weights(seed), temporary, metadata={"format": "pt"})
    os.replace(temporary, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1)
