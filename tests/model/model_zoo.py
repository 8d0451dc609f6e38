"Small random models of other families for the tests of this room"
import torch
from transformers import LlamaConfig, LlamaForCausalLM


def llama(seed=0, attention='sdpa', dtype=torch.float32, **kwargs):
    "An untied Llama of three layers"
    settings = dict(vocab_size=300, hidden_size=48, intermediate_size=96, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2,
                    max_position_embeddings=512, tie_word_embeddings=False,
                    eos_token_id=2, bos_token_id=1, pad_token_id=0, initializer_range=.15)
    config = LlamaConfig(**{**settings, **kwargs})
    config._attn_implementation = attention
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config)
    for p in model.parameters(): p.data = p.data.to(dtype)
    return model.eval()
