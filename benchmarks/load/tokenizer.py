"""A tokenizer without a model, for tools that cannot do without one: 8,000 pieces of bytes, learnt from this project's pages.

    python tokenizer.py FOLDER        needs `tokenizers` and `transformers`
"""

import json
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

END, SIZE = "<|end|>", 8000
pages = [str(page) for page in sorted(Path(__file__).parents[2].glob("docs/*.md"))]
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
tokenizer.train(pages, trainers.BpeTrainer(vocab_size=SIZE, special_tokens=[END], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=END, eos_token=END, pad_token=END, model_max_length=1 << 20)
wrapped.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
wrapped.save_pretrained(sys.argv[1])
(Path(sys.argv[1]) / "config.json").write_text(json.dumps({"model_type": "gpt2", "vocab_size": len(wrapped), "n_positions": 1 << 20}))
