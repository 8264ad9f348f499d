"""Run by a Python that has transformers: writes a tiny Llama with random weights into the folder that is named.

Each printable ASCII character is a token, so that every token of an answer has a text at once.
"""

import string
import sys


def main(folder: str) -> None:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers  # type: ignore[import-not-found]
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast  # type: ignore[import-not-found]

    special = ["<s>", "</s>", "<unk>"]
    vocabulary = {token: number for number, token in enumerate([*special, *string.printable[:95]])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>").save_pretrained(
        folder
    )
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=8192,
        bos_token_id=0,
        eos_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


if __name__ == "__main__":
    main(sys.argv[1])
