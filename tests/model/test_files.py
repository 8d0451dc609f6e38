import json
import random

import jinja2
import pytest
import torch
from hypothesis import given, settings, strategies as st

from grail.core.basics import FormatError, canonical_json
from grail.model.files import FILES, files_to_folder, folder_to_files, model_from_files, model_to_files, weights, weights_digest
from grail.model.tiny import genesis, tokenizer
from model.model_zoo import llama

PARTS = model_to_files(*genesis())
JSONS = [n for n in FILES if n.endswith('.json')]


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16, torch.float16])
def test_a_model_survives_the_files_to_the_bit(dtype):
    model = llama(dtype=dtype)
    files = model_to_files(model, tokenizer())
    back, _ = model_from_files(files)
    assert weights_digest(back) == weights_digest(model) and back.dtype == dtype
    assert model_to_files(back, tokenizer()) == files
    ids = torch.arange(20)[None]
    with torch.no_grad(): assert torch.equal(back(input_ids=ids).logits, model(input_ids=ids).logits)

def test_untied_heads_are_kept_and_tied_ones_written_once():
    assert 'lm_head.weight' in weights(llama()) and 'lm_head.weight' not in weights(genesis()[0])

def test_the_digest_tells_names_dtypes_shapes_and_bits_apart():
    a = {'x': torch.zeros(2, 3), 'y': torch.zeros(1)}
    others = [{'x': torch.zeros(3, 2), 'y': torch.zeros(1)}, {'x': torch.zeros(2, 3), 'z': torch.zeros(1)}, {'x': torch.zeros(2, 3)},
              {'x': torch.zeros(2, 3).bfloat16(), 'y': torch.zeros(1)}, {'x': -torch.zeros(2, 3), 'y': torch.zeros(1)}]
    assert len({weights_digest(s) for s in (a, *others)}) == 6
    assert weights_digest({'y': torch.zeros(1), 'x': torch.zeros(3, 2).T}) == weights_digest(a)

@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.sampled_from(FILES), st.integers(0, 2**32))
def test_no_corruption_is_worse_than_a_format_error(name, seed):
    rng, data = random.Random(seed), bytearray(PARTS[name])
    for _ in range(rng.randint(1, 4)):
        if not data: break
        at = rng.randrange(min(len(data), 3000))
        how = rng.randrange(4)
        if how == 0: data[at] = rng.randrange(256)
        elif how == 1: del data[at:at+rng.randint(1, 9)]
        elif how == 2: data[at:at] = bytes(rng.choice(b'0123456789{}[]",:-eE') for _ in range(rng.randint(1, 9)))
        else: del data[max(at, 1):]
    try: model_from_files({**PARTS, name: bytes(data)})
    except FormatError: pass

VALUES = st.sampled_from([None, True, -1, 0, 1, 7, 2**31, 2**63, 10**30, 1.5, -1e308,
                          '', 'x', '../x', [], {}, [1]*50, {'a': 1}, ['full_attention'], 'a/b'])

@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.sampled_from(JSONS[:2] + ['tokenizer_config.json']), st.data())
def test_no_odd_value_is_worse_than_a_format_error(name, data):
    d = json.loads(PARTS[name])
    key = data.draw(st.sampled_from(sorted(d) +
                                    ['auto_map', 'quantization_config', 'attn_implementation', '_attn_implementation', 'added']))
    d[key] = data.draw(VALUES)
    try: model_from_files({**PARTS, name: canonical_json(d)})
    except FormatError: pass

@pytest.mark.parametrize('change', [dict(hidden_size=2**30), dict(vocab_size=2**40),
                                    dict(num_hidden_layers=10**9, layer_types=None), dict(intermediate_size=2**50),
                                    dict(num_attention_heads=10**9), dict(num_hidden_layers=4096, layer_types=None), dict(head_dim=2**40)])
def test_a_configuration_cannot_ask_for_more_than_the_file_holds(change):
    config = {**json.loads(PARTS['config.json']), **change}
    with pytest.raises(FormatError): model_from_files({**PARTS, 'config.json': canonical_json(config)})

def test_a_table_beside_the_weights_cannot_be_asked_for():
    "GPT-2's attention keeps a square table of its longest text, which is no weight"
    config = dict(model_type='gpt2', n_embd=8, n_layer=1, n_head=1, vocab_size=20, n_positions=200_000)
    with pytest.raises(FormatError): model_from_files({**PARTS, 'config.json': canonical_json(config)})

def test_a_chat_template_is_run_in_a_sandbox():
    settings_ = {**json.loads(PARTS['tokenizer_config.json']), 'chat_template': "{{ ''.__class__.__mro__[1].__subclasses__() }}"}
    tok = model_from_files({**PARTS, 'tokenizer_config.json': canonical_json(settings_)})[1]
    with pytest.raises(jinja2.exceptions.SecurityError): tok.apply_chat_template([dict(role='user', content='x')], tokenize=False)

def test_other_files_of_a_folder_are_neither_read_nor_written(tmp_path):
    files_to_folder({**PARTS, '../evil': b'x'}, tmp_path/'a')
    assert sorted(p.name for p in (tmp_path/'a').iterdir()) == sorted(FILES) and not (tmp_path/'evil').exists()
    (tmp_path/'a'/'modeling_x.py').write_text('raise SystemExit')
    assert folder_to_files(tmp_path/'a') == PARTS
    with pytest.raises(FormatError): model_from_files({**PARTS, 'modeling_x.py': b''})

def test_loading_in_another_dtype_rounds_weights_only():
    model = model_from_files(PARTS, dtype=torch.bfloat16, attention='eager')[0]
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16} and {b.dtype for b in model.buffers()} == {torch.float32}
    assert model.config._attn_implementation == 'eager'
