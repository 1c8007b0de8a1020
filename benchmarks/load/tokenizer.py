"""A tokenizer without a model, for tools that cannot do without one: every byte is a token.

    python tokenizer.py FOLDER        needs `tokenizers` and `transformers`
"""

import json
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

END = "<|end|>"
alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
tokenizer = Tokenizer(models.BPE(vocab={letter: k for k, letter in enumerate([*alphabet, END])}, merges=[]))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=END, eos_token=END, pad_token=END, model_max_length=1 << 20)
wrapped.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
wrapped.save_pretrained(sys.argv[1])
(Path(sys.argv[1]) / "config.json").write_text(json.dumps({"model_type": "gpt2", "vocab_size": len(alphabet) + 1, "n_positions": 1 << 20}))
