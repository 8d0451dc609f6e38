"Environments: promises, splits, real data, plug-ins, and the box for programs"
import json
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from grail.core.basics import ConfigError, sha256
from grail.envs import code as box
from grail.envs.answers import data_folder
from grail.envs.base import BUILTIN, Environment, Outcome, broken_promises, environments, make_env, row_of
from grail.envs.curriculum import Curriculum, SolveRates
from grail.envs.math import HELD_OUT, SUBJECTS, math_questions
from grail.envs.single import Question, apportion, chat_prompt, format_parts, overlap, question_id, stratified
from grail.envs.sort import digits_of, held_out

DATA = data_folder()
needs_data = pytest.mark.skipif(DATA is None, reason='no evaluation data: set GRAIL_DATA to the folder with the data files')
needs_box = pytest.mark.skipif(not sys.platform.startswith('linux'), reason='the box for programs needs Linux')


@pytest.fixture(scope='module')
def tok():
    chars = [chr(c) for c in range(32, 127)] + ['\n']
    core = Tokenizer(models.WordLevel({c: i for i, c in enumerate(chars)} | {'<eos>': 96, '<unk>': 97}, unk_token='<unk>'))
    core.pre_tokenizer, core.decoder = pre_tokenizers.Split('', 'isolated'), decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token='<eos>', unk_token='<unk>')


def ids(tok, text): return tok(text, add_special_tokens=False)['input_ids']


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    "Small files in the forms of the real ones"
    where = tmp_path_factory.mktemp('data')
    gsm = [{'question': f'How much is {i} and {i}?', 'answer': f'It is\n#### {2*i}'} for i in range(60)]
    amc = [{'problem': f'Find {i} squared.', 'answer': float(i*i)} for i in range(40)]
    (where/'gsm8k_train.jsonl').write_text('\n'.join(map(json.dumps, gsm)))
    (where/'amc23_test.jsonl').write_text('\n'.join(map(json.dumps, amc)))
    for i in range(70):
        p = where/'train'/SUBJECTS[i % 7]/f'{i}.json'
        p.parent.mkdir(parents=True, exist_ok=True)
        row = {'problem': f'Solve $x-{i}=0$.', 'solution': rf'So $x=\boxed{{{i}}}$.', 'level': f'Level {i % 5 + 1}', 'type': 'X'}
        p.write_text(json.dumps(row))
    return where


@pytest.mark.parametrize('env_id', sorted(BUILTIN))
def test_built_in_environments_keep_their_promises(env_id, tok, folder):
    env = make_env(env_id, tok, folder if env_id != 'mbpp' else None)
    assert isinstance(env, Environment) and env.id == env_id and broken_promises(env) == []
    t = env.task(2**64 - 1)
    assert make_env(env_id, tok, folder if env_id != 'mbpp' else None).task(2**64 - 1) == t


@pytest.mark.parametrize('env_id', ['gsm8k', 'math', 'amc23'])
def test_right_answers_pay_all_and_text_after_the_end_pays_nothing(env_id, tok, folder):
    env = make_env(env_id, tok, folder)
    for seed in range(0, 2**64, 2**61):
        t = env.task(seed)
        said = f'<start_working_out>...<end_working_out><SOLUTION>{t.answer}</SOLUTION>'
        assert env.evaluate(t, ids(tok, said) + [96]) == Outcome(1., True)
        assert env.evaluate(t, [96] + ids(tok, said)) == Outcome(0., False)
        assert env.evaluate(t, ids(tok, said) + [96, -1, 10**30]).success and not env.evaluate(t, ids(tok, said) + [-1]).success
        assert env.evaluate(t, ids(tok, said.replace(t.answer, '-7'))) == Outcome(.3, False)


def test_rewards_and_their_parts_are_in_the_declared_range(tok, folder):
    env = make_env('gsm8k', tok, folder)
    t = env.task(0)
    for text in ('', '<SOLUTION>', '</SOLUTION>'*3, '<SOLUTION>\n</SOLUTION>', '<end_working_out><start_working_out>',
                 f'#### {t.answer}', 'x'*5000, '<SOLUTION>1</SOLUTION>' + ' y'*500):
        out = env.evaluate(t, ids(tok, text))
        assert 0 <= out.reward <= 1 and all(0 <= v <= 1 for v in out.parts.values())
        assert set(out.parts) == {'correct', *format_parts(text)}


def test_the_sort_split_is_by_the_problem_itself():
    assert not any(held_out(digits_of('train', s)) for s in range(3000))
    assert all(held_out(digits_of('validation', s)) for s in range(300))
    assert sha256(''.join(digits_of('train', s) for s in range(100)).encode())[:16] == SORT_DIGEST


def test_the_prompt_uses_the_chat_template_and_opens_the_answer(tok):
    from copy import deepcopy
    chat = deepcopy(tok)
    chat.chat_template = ('{% for m in messages %}[{{m.role}}]{{m.content}}\n{% endfor %}'
                          '{% if add_generation_prompt %}[assistant]{% endif %}')
    text, token_ids = chat_prompt(chat, 'What?', 'Answer.')
    assert text == '[system]Answer.\n[user]What?\n[assistant]' and list(token_ids) == ids(tok, text)


# The training set of MATH in its real proportions: 7,500 stand-ins whose texts are their names
MATH_SIZES  = dict(zip(SUBJECTS, (1744, 771, 870, 1295, 869, 1205, 746)))
MATH_DIGEST = '7189f2cfe83a4df9'
SORT_DIGEST = '05f0460b40859eff'

def stand_ins():
    names = [(s, i, f'{s} {i}') for s, n in MATH_SIZES.items() for i in range(n)]
    return [Question(question_id(text), text, '', (s, str(1 + i*i % 5))) for s, i, text in names]


def test_math_split_is_7000_and_500_balanced_and_the_same_everywhere():
    qs = stand_ins()
    held = stratified(qs, HELD_OUT, 'math validation')
    total, taken = Counter(q.strata for q in qs), Counter(q.strata for q in qs if q.id in held)
    assert (len(qs), len(held), sum(q.id not in held for q in qs)) == (7500, 500, 7000)
    assert all(abs(taken[s] - n*500/7500) < 1 for s, n in total.items())
    assert held == stratified(qs[::-1], HELD_OUT, 'math validation')
    assert sha256(' '.join(sorted(held)).encode())[:16] == MATH_DIGEST


def test_math_files_in_two_layouts_lead_to_one_split(folder, tmp_path, tok):
    rows = [json.loads(p.read_text()) for p in sorted((folder/'train').glob('*/*.json'))]
    (tmp_path/'math_train.json').write_text(json.dumps(rows[::-1]))
    a, b = make_env('math', tok, folder), make_env('math', tok, tmp_path)
    assert [q.id for q in a.held] == [q.id for q in b.held] and [q.id for q in a.train] == [q.id for q in b.train]
    assert len(math_questions(folder)) == 70


def test_apportioning_gives_each_stratum_its_share_within_one():
    for sizes, n in (({'a': 1, 'b': 1, 'c': 1}, 2), ({'a': 5, 'b': 100}, 7), ({str(i): i+1 for i in range(30)}, 100)):
        got, total = apportion(sizes, n), sum(sizes.values())
        assert sum(got.values()) == n and all(abs(got[s] - n*k/total) < 1 and got[s] <= k for s, k in sizes.items())
    with pytest.raises(ConfigError): apportion({'a': 1}, 2)


def test_missing_and_broken_data_is_an_error_that_says_what_to_do(tok, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match='no data at'): make_env('gsm8k', tok, tmp_path/'absent')
    with pytest.raises(ConfigError, match='GRAIL_DATA'): make_env('amc23', tok, tmp_path)
    for text in ('{"question": 1}', 'not json', '[1, 2]'):
        (tmp_path/'gsm8k_train.jsonl').write_text(text)
        with pytest.raises(ConfigError): make_env('gsm8k', tok, tmp_path)


def test_an_entry_point_adds_an_environment_and_cannot_replace_one(tok, tmp_path, monkeypatch):
    (tmp_path/'plug_tasks.py').write_text('from grail.envs.sort import Sort\nclass Plug(Sort): id = "plug"\n')
    meta = tmp_path/'plug_tasks-1.0.dist-info'
    meta.mkdir()
    (meta/'METADATA').write_text('Metadata-Version: 2.1\nName: plug-tasks\nVersion: 1.0\n')
    (meta/'entry_points.txt').write_text('[grail.environments]\nplug = plug_tasks:Plug\nsort6 = plug_tasks:Plug\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    assert 'plug' in environments() and make_env('plug', tok).id == 'plug' and make_env('sort6', tok).id == 'sort6'


@needs_data
def test_real_data_is_read_whole_and_held_out_questions_are_new(tok):
    sizes = {}
    for env_id in ('gsm8k', 'math', 'amc23'):
        env = make_env(env_id, tok, DATA)
        assert broken_promises(env, range(0, 2**64, 2**61)) == [] and overlap(env.held, env.train) == []
        sizes[env_id] = len(env.questions)
        for q in env.questions[:150]:
            t = env.task_of(q, 0)
            assert env.evaluate(t, ids(tok, rf'\boxed{{{t.answer}}}') + [96]).success, q
    if not (Path(DATA)/'gsm8k_train.jsonl').exists() and not (Path(DATA)/'math_train.jsonl').exists():
        assert sizes == {'gsm8k': 1319, 'math': 500, 'amc23': 40}


# ------------------------------------------------------------------------------------------------ programs

@needs_box
def test_results_cross_the_border_as_plain_values():
    values = [0, -5, 10**40, True, None, 1.5, float('inf'), 'é\n"', [1, [2, (3,)]], {1, 2}, {'a': {1: (2.5, None)}}, ()]
    src = 'inf = float("inf")\n' + ''.join(f'def f{i}(): return {v!r}\n' for i, v in enumerate(values))
    got = box.compute(src, [f'f{i}()' for i in range(len(values))])
    assert got == values and list(map(type, got)) == list(map(type, values))


@needs_box
def test_the_same_program_gives_the_same_result_twice():
    src = 'import random\ndef f(n): return [random.random() for _ in range(n)], [*{str(i) for i in range(n)}], hash("a")'
    assert box.compute(src, ['f(9)']) == box.compute(src, ['f(9)']) != []


@needs_box
def test_endless_programs_end_by_count_and_not_by_the_clock(monkeypatch):
    monkeypatch.setattr(box, 'SECONDS', 60)
    for src in ('while True: pass', 'def f(): return sum(1 for _ in iter(int, 1))\nf()',
                'x = 0\nwhile 1:\n    try: x += 1\n    except BaseException: pass'):
        assert box.compute(src, ['1']) == []
    assert box.compute('n = 0\nfor i in range(50_000): n += i', ['n']) == [1249975000]


@needs_box
def test_long_work_in_one_call_and_memory_are_bounded(monkeypatch):
    monkeypatch.setattr(box, 'SECONDS', 1)
    for src in ('sum(range(10**12))', 'x = "a" * 10**10', 'x = [0] * 10**9', 'pow(7, 10**9)'):
        assert box.compute(src, ['1']) == [], src


@needs_box
def test_no_trace_no_process_no_network_no_file(tmp_path):
    target = str(tmp_path/'trace')
    for src in (f'open({target!r}, "w")', f'import os; assert os.system("touch {target}") == 0',
                f'import os; os.mkdir({target!r})', 'import os; os.fork()', 'import socket; socket.socket()',
                'import ctypes; assert ctypes.CDLL(None).socket(2, 1, 0) >= 0',
                'import threading; threading.Thread(target=int).start()', 'open("/proc/self/environ").read()',
                'import os; os.kill(os.getppid(), 9)', 'import time; time.sleep(0.1)', 'import sys; sys.stdin.read(1)[0]'):
        assert box.compute(src, ['1']) == [], src
    assert not list(tmp_path.iterdir())
    (names,) = box.compute('import os\ndef f(): return dict(os.environ)', ['sorted(f())'])
    assert set(names) <= {'PYTHONHASHSEED', 'LC_CTYPE'}


@needs_box
def test_a_program_cannot_claim_what_it_does_not_compute(tok):
    env = make_env('mbpp', tok)
    for seed in (0, 2**62, 2**63):
        t = env.task(seed)
        name = json.loads(t.answer)[0]['call'].split('(')[0]
        lies = (f'class A:\n    def __eq__(s, o): return True\n    def __hash__(s): return 0\ndef {name}(*a): return A()',
                f'class A(str):\n    def __eq__(s, o): return True\ndef {name}(*a): return A()',
                f'import builtins\nbuiltins.repr = lambda x: ""\ndef {name}(*a): return None', 'raise SystemExit(0)',
                'import os; os.write(1, b"[[\\"const\\", true]]"); os._exit(0)',
                f'def {name}(*a): return __import__("sys").exit(0)')
        for lie in lies: assert not env.evaluate(t, ids(tok, f'```python\n{lie}\n```') + [96]).success, lie


@needs_box
def test_programs_may_be_judged_in_several_threads():
    out = []
    def work(i): out.append((i, box.compute(f'def f(): return {i}', ['f()'])))
    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for t in threads: t.start()
    for t in threads: t.join()
    assert sorted(out) == [(i, [i]) for i in range(6)]


@needs_box
def test_mbpp_files_are_read_and_odd_tests_left_out(tok, tmp_path):
    tests = lambda i: [f'assert f{i}(1) == {i+1}', f'assert f{i}(2) == {i+2}', f'assert f{i}(n) == g', 'import os']
    rows = [dict(text=f'Write a function f{i}(n) that adds {i}.', test_list=tests(i)) for i in range(20)]
    rows += [dict(text='no tests', test_list=[]), dict(text='odd', test_list=['assert x'])]
    (tmp_path/'mbpp.jsonl').write_text('\n'.join(map(json.dumps, rows)))
    env = make_env('mbpp', tok, tmp_path)
    assert len(env.questions) == 20 and all(len(json.loads(q.answer)) == 2 for q in env.questions)
    t = env.task(5)
    k = int(t.prompt.split('that adds ')[1].split('.')[0])
    assert env.evaluate(t, ids(tok, f'```python\ndef f{k}(n): return n + {k}\n```') + [96]) == Outcome(1., True)
    assert not env.evaluate(t, ids(tok, f'```python\ndef f{k}(n): return {k+1}\n```') + [96]).success


# ------------------------------------------------------------------------------------------------ curriculum

def test_a_curriculum_prefers_the_middle_and_forgets_nobody(tok, folder):
    env = make_env('gsm8k', tok, folder)
    rates, hard = SolveRates(), {q.id for q in env.train[:40]}
    for _ in range(3): rates.window([(q.id, 0 if q.id in hard else 8, 16) for q in env.train])
    cur = Curriculum(env, rates)
    asked = Counter(cur.question(int(sha256(b'%d' % i)[:16], 16)).id for i in range(4000))
    share = sum(asked[q] for q in hard)/4000
    assert broken_promises(cur) == [] and set(asked) == {q.id for q in env.train}
    assert abs(share - len(hard)/(len(hard) + 8*(len(env.train) - len(hard)))) < .03


def test_solve_rates_do_not_depend_on_the_order_of_results():
    results = [(f'q{i % 7}', i % 5, 16) for i in range(50)]
    a, b = SolveRates(), SolveRates()
    a.window(results)
    b.window(results[::-1])
    assert a.digest() == b.digest()


def test_rows_are_chosen_evenly_and_for_every_seed():
    assert [row_of(s, 3) for s in (0, 2**64//3 - 1, 2**64//3 + 1, 2**64 - 1, 2**64)] == [0, 0, 1, 2, 0]
