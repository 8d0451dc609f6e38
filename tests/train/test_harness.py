"The standard harness with our tasks: the environments' prompts and verdicts, the texts of its own model class, no network."
import json
import math
import socket
from types import SimpleNamespace

import pytest
import torch
from typer import Typer
from typer.testing import CliRunner

pytest.importorskip('lm_eval', reason="the harness is not installed: pip install 'grail[eval]'")

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from grail.cli.eval import evaluate
from grail.core.basics import ConfigError, FormatError
from grail.envs.single import over
from grail.model.engine import TransformersEngine
from grail.model.files import files_to_folder, model_to_files
from grail.model.tiny import genesis
from grail.train.harness import (KINDS, benchmark, compare, difference, harness_model, own_tasks, render, run_harness, run_own,
                                 table, task_config, write)

MATH_SETS = ('gsm8k', 'math500', 'amc23')
TEMPLATE  = ('{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}'
             '{% if add_generation_prompt %}<assistant>{% endif %}')


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(self, address): raise AssertionError(f'a connection to {address}')
    monkeypatch.setattr(socket.socket, 'connect', refuse)
    monkeypatch.delenv('GRAIL_DATA', raising=False)


@pytest.fixture(scope='module')
def toy(): return genesis()


@pytest.fixture(scope='module', params=['template', 'plain'])
def reader(request):
    "A tokenizer of bytes, with and without a chat template"
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate([*alphabet, '<eos>'])}, merges=[]))
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    template = TEMPLATE if request.param == 'template' else None
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token='<eos>', chat_template=template)


@pytest.fixture(scope='module')
def sets(tmp_path_factory):
    "Four questions of each kind, in the files' own forms"
    folder = tmp_path_factory.mktemp('sets')
    lines, ns = lambda rows: '\n'.join(map(json.dumps, rows)), range(3, 7)
    gsm8k = [dict(question=f'Ann has {n} pens and finds {n}. How many?', answer=f'{n}+{n}={2*n}\n#### {2*n}') for n in ns]
    amc   = [dict(problem=f'What is ${n+1}^2$?', answer=float((n+1)**2)) for n in ns]
    maths = [dict(problem=f'Solve ${n}x = 1$, {{{{n}}}}.', answer=rf'\frac{{1}}{{{n}}}', level=1, subject='Algebra') for n in ns]
    (folder/'gsm8k_test.jsonl').write_text(lines(gsm8k))
    (folder/'amc23_test.jsonl').write_text(lines(amc))
    (folder/'math500_test.json').write_text(json.dumps(maths))
    return folder


class Scripted:
    "An engine that writes what it is told, prompt by prompt"
    def __init__(self, tokenizer, texts): self.tokenizer, self.texts, self.seen = tokenizer, texts, []
    def generate(self, prompts, keys, max_new_tokens, temperature=1., top_k=0, top_p=1., eos_id=None):
        self.seen += [self.tokenizer.decode(p) for p in prompts]
        return [(self.tokenizer(self.texts[self.tokenizer.decode(p)])['input_ids'] + [eos_id])[:max_new_tokens] for p in prompts]


def answers(name, questions):
    "Right in the asked form, right in another form, wrong, nothing"
    right, other = questions[0].answer, {'gsm8k': '8.0', 'math500': '0.25', 'amc23': '50/2'}[name]
    return [f'<SOLUTION>{right}</SOLUTION>', rf'so it is \boxed{{{other}}}', '<SOLUTION>999</SOLUTION>', 'no idea']


@pytest.mark.parametrize('name', MATH_SETS)
def test_scores_are_the_environments_verdicts_with_the_error_of_the_mean(name, sets, reader):
    questions = benchmark(name).load(sets)
    env, tasks = own_tasks(name, reader, questions)
    texts = dict(zip([t.prompt for t in tasks], answers(name, questions)))
    got = run_harness(Scripted(reader, texts), reader, {name: questions})[name]
    assert [s['right'] for s in got['samples']] == [True, True, False, False]
    assert [s['found'] is not None for s in got['samples']] == [True, True, True, False]
    assert (got['exact_match'], got['answered'], got['tasks']) == (.5, .75, 4)
    assert math.isclose(got['exact_match_se'], math.sqrt(.25/3)) and math.isclose(got['answered_se'], math.sqrt(.75*.25/3))
    own = run_own(Scripted(reader, texts), reader, {name: questions}, samples=0)[name]
    assert own['pass@1'] == got['exact_match'] and math.isclose(own['pass@1_se'], got['exact_match_se'])


@pytest.mark.parametrize('name', MATH_SETS)
def test_the_model_reads_the_prompts_of_the_environment(name, sets, reader):
    questions = benchmark(name).load(sets)
    prompts = [t.prompt for t in over(KINDS[benchmark(name).env], reader, questions)[1]]
    engine = Scripted(reader, dict.fromkeys(prompts, 'x'))
    run_harness(engine, reader, {name: questions})
    assert engine.seen == prompts and all(q.text in p for q, p in zip(questions, prompts))


def test_several_sets_do_not_mix(sets, reader):
    questions = {n: benchmark(n).load(sets) for n in MATH_SETS}
    texts = {t.prompt: f'<SOLUTION>{t.answer}</SOLUTION>' if n == 'amc23' else ''
             for n, qs in questions.items() for t in own_tasks(n, reader, qs)[1]}
    got = run_harness(Scripted(reader, texts), reader, questions)
    assert {n: g['exact_match'] for n, g in got.items()} == dict(gsm8k=0, math500=0, amc23=1)


def test_one_question_has_no_standard_error(sets, reader):
    questions = benchmark('amc23').load(sets)[:1]
    texts = {t.prompt: '' for t in own_tasks('amc23', reader, questions)[1]}
    assert run_harness(Scripted(reader, texts), reader, {'amc23': questions})['amc23']['exact_match_se'] is None


def test_nothing_after_the_limit_of_tokens_counts(sets, reader):
    questions = benchmark('amc23').load(sets)[:2]
    texts = {t.prompt: 'hm '*10 + f'<SOLUTION>{t.answer}</SOLUTION>' for t in own_tasks('amc23', reader, questions)[1]}
    scores = [run_harness(Scripted(reader, texts), reader, {'amc23': questions}, n)['amc23']['exact_match'] for n in (30, 100)]
    assert scores == [0, 1]


def test_the_harness_own_model_class_writes_the_same_texts(toy):
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.evaluator import evaluate as evaluate_tasks
    from lm_eval.models.huggingface import HFLM
    model, tokenizer = toy
    questions = benchmark('sort6').load()[:60]
    ours = run_harness(TransformersEngine(model), tokenizer, {'sort6': questions}, 8)['sort6']
    task = ConfigurableTask(config=task_config('sort6', questions, 8))
    theirs = evaluate_tasks(HFLM(pretrained=model, tokenizer=tokenizer, batch_size=20), dict(tasks={'sort6': task}, groups={}))
    assert [s['text'] for s in ours['samples']] == [s['resps'][0][0] for s in theirs['samples']['sort6']]
    assert ours['exact_match_se'] == theirs['results']['sort6']['exact_match_stderr,none']


def test_a_checkpoint_in_a_folder_scores_as_the_model_that_it_was_made_from(toy, tmp_path):
    files_to_folder(model_to_files(*toy), tmp_path)
    result = compare({'a': 'tiny', 'b': str(tmp_path)}, ['sort6'], limit=20, max_new_tokens=8)
    a, b = (m['tasks']['sort6'] for m in result['models'])
    assert a == b and difference(a['harness'], b['harness']) == (0, 0)
    assert result == compare({'a': 'tiny', 'b': str(tmp_path)}, ['sort6'], limit=20, max_new_tokens=8)


def test_a_limit_takes_the_first_questions():
    long, short = (compare({'a': 'tiny'}, ['sort6'], limit=n, samples=0)['models'][0]['tasks']['sort6'] for n in (12, 5))
    assert long['harness']['samples'][:5] == short['harness']['samples']


def test_files(tmp_path):
    result = compare({'a|b': 'tiny'}, ['sort6'], limit=10, samples=2)
    paths = write(result, tmp_path/'x'/'y')
    assert json.loads(paths[0].read_text()) == result
    assert r'a\|b' in paths[1].read_text() and table(result) in paths[1].read_text()
    assert paths[2].read_bytes().startswith(b'\x89PNG') and paths[2].stat().st_size > 3000


@pytest.mark.parametrize('asked', [dict(until=['\n']), dict(do_sample=True), dict(temperature=.7)])
def test_what_would_be_another_experiment_is_refused(asked, toy):
    model = harness_model(TransformersEngine(toy[0]), toy[1])
    request = SimpleNamespace(args=('123456=', dict(until=[], max_gen_toks=4) | asked))
    with pytest.raises(ConfigError): model.generate_until([request])
    with pytest.raises(ConfigError): model.loglikelihood([request])


def test_missing_and_broken_data(tmp_path, sets):
    with pytest.raises(ConfigError, match='not a folder'): benchmark('gsm8k').load(sets/'gsm8k_test.jsonl')
    (tmp_path/'gsm8k_test.jsonl').write_text('{"question": 1}')
    with pytest.raises(ConfigError): benchmark('gsm8k').load(tmp_path)
    (tmp_path/'amc23_test.jsonl').write_text('')
    with pytest.raises(ConfigError, match='nothing to evaluate'): compare({'a': 'tiny'}, ['amc23'], tmp_path)
    with pytest.raises(FormatError): compare({'a': str(tmp_path)}, ['sort6'])


def test_the_sets_are_complete(data):
    assert {n: len(benchmark(n).load(data)) for n in MATH_SETS} == dict(gsm8k=1319, math500=500, amc23=40)


def test_a_template_sees_the_messages(reader):
    text = render(reader, [dict(role='system', content='S'), dict(role='user', content='U')])
    assert text == ('<system>S\n<user>U\n<assistant>' if reader.chat_template else 'S\n\nU\n\n')


@pytest.mark.smollm
def test_smollm_on_all_sets_from_the_command_line(data, tmp_path):
    torch.set_num_threads(2)
    app = Typer()
    app.command('eval')(evaluate)
    done = CliRunner().invoke(app, ['--model', 'smollm2', '--tasks', ','.join(MATH_SETS), '--limit', '2', '--data', str(data),
                                    '--max-new-tokens', '24', '--samples', '2', '--out', str(tmp_path)])
    assert done.exit_code == 0, done.exception
    result = json.loads((tmp_path/'eval.json').read_text())
    assert set(result['models'][0]['tasks']) == set(MATH_SETS)
    assert (tmp_path/'eval.md').exists() and (tmp_path/'eval.png').exists()
    for name in MATH_SETS:
        scores = result['models'][0]['tasks'][name]
        assert scores['harness']['tasks'] == 2 == scores['own']['tasks'] and scores['own']['samples'] == 2
        assert all(s['text'] for s in scores['harness']['samples'])
