"Answers: the gathered cases, rewriting, hostile text in threads and processes, real data, throughput"
import gc
import json
import multiprocessing
import os
import random
import signal
import threading
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from grail.envs.answers import SecondOpinion, _gold, data_folder, equivalent, extract, final_number, judge, plain

DATA = data_folder()
ORACLES = Path(DATA).parent/'oracles' if DATA else None
needs_data = pytest.mark.skipif(DATA is None, reason='no evaluation data: set GRAIL_DATA to the folder with gsm8k_test.jsonl, '
                                                     'math500_test.json and amc23_test.jsonl')

# What a careful mathematician says of pairs from public bug reports (written down here again, so that the test needs no file)
def pairs(text): return [tuple(l.split(' ~ ')) for l in text.strip().splitlines()]

EQUAL = pairs(r'''
72^\circ ~ 72
-2, 1 ~ 1,-2
(x+1)^2 ~ x^2+2x+1
$13$ ~ 13
2/3 ~ \frac{2}{3}
\text{13} ~ 13
4210_{5} ~ 4210_5
64 \text{ square feet} ~ 64
y = -\frac{1}{2}x + \frac{3}{4} ~ 2x+4y-3=0
x>2 ~ (2,\infty)
\sqrt{\frac{1}{n}} ~ \frac{1}{\sqrt{n}}
1<x\le 3 ~ (1,3]
''')
DIFFERENT = pairs(r'''
3x+4y+14=0 ~ 3x-y+13=0
2021 ~ \pm 2021
1:00 ~ 12:00
n=1, 2, 3 ~ n=2, 3, 4
D = (0, 1.5) ~ D = (0, 1)
1, 3, 5, \ldots, 2n-1 ~ 1, 2, \ldots, n
9^{9^{9^{9}}} ~ 1
\begin{pmatrix}1&2\\3&5\end{pmatrix} ~ \begin{pmatrix}1&2\\3&4\end{pmatrix}
\frac{1}{2006!} ~ \frac{1}{2004!}
1728 ~ 1331 \text{ and } 1728
21, 36, and 82 ~ 19, 46, \text{ and } 82
\forall x>0, f(x) = 0 ~ f(x) = 0
y^2+2y+1 ~ x^2+2x+1
\boxed{4} ... \boxed{ ~ 4
4\sqrt(2) ~ 4
2^{-98} ~ 2^{-99}
1 ~ 1\pm\frac{1}{\mathrm{e}}
50\% ~ 0.5
''') + [('', '5')]
GATHERED = [(*p, True) for p in EQUAL] + [(*p, False) for p in DIFFERENT]


@pytest.mark.parametrize('prediction,gold,equal', GATHERED)
def test_gathered_cases_are_decided_as_a_mathematician_would(prediction, gold, equal):
    assert equivalent(prediction, gold) is equal


@needs_data
def test_oracle_file_has_no_mistake_and_no_false_positive():
    if not (ORACLES/'answer_cases.json').exists(): pytest.skip('no answer_cases.json beside the data')
    cases = json.loads((ORACLES/'answer_cases.json').read_text())['cases']
    assert [c['id'] for c in cases if equivalent(c['pred'], c['gold']) != c['equal']] == []


rationals = st.fractions(min_value=-500, max_value=500, max_denominator=60)

def spellings(q):
    n, d = q.numerator, q.denominator
    yield from (f'{n}/{d}', rf'\frac{{{n}}}{{{d}}}', rf'\dfrac{{{2*n}}}{{{2*d}}}', f'${n} \\div {d}$',
                rf'x = \frac{{{n}}}{{{d}}}',
                rf'-\frac{{{-n}}}{{{d}}}' if n < 0 else rf'\frac{{{-n}}}{{-{d}}}', rf'\frac{{{n+d}}}{{{d}}} - 1',
                rf'{n} \times {d}^{{-1}}', rf'\left(\frac{{{n}}}{{{d}}}\right)')
    if 10**6 % d == 0: yield str(n/d) if 1e-3 < abs(n/d) < 1e5 and '.' in str(n/d) else f'{n}/{d}'
    if n > d > 1: yield rf'{n//d}\frac{{{n%d}}}{{{d}}}'


@settings(max_examples=30, deadline=None)
@given(rationals)
def test_a_number_equals_its_spellings_and_not_its_successor(q):
    gold = rf'\frac{{{q.numerator}}}{{{q.denominator}}}'
    for s in spellings(q):
        assert equivalent(s, gold) and equivalent(gold, s), s
        assert not equivalent(f'{s} + 1', gold) and not equivalent(s, f'{q+1}'), s


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(-9, 9), min_size=1, max_size=5), st.integers(1, 9), st.randoms(use_true_random=False))
def test_a_polynomial_equals_its_terms_in_any_order_and_its_multiplication(coefs, k, rnd):
    terms = [f'({c})x^{{{i}}}' for i, c in enumerate(coefs)]
    gold = ' + '.join(terms)
    rnd.shuffle(terms)
    shuffled = '+'.join(terms)
    assert equivalent(shuffled, gold) and equivalent(rf'\frac{{({shuffled})(x+{k})}}{{x+{k}}}', gold)
    assert not equivalent(f'{shuffled}+1', gold) and not equivalent(f'({shuffled})+x^9', gold)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 400), st.integers(1, 400))
def test_roots_multiply(a, b):
    assert equivalent(rf'\sqrt{{{a}}}\cdot\sqrt{{{b}}}', rf'\sqrt{{{a*b}}}')
    assert equivalent(rf'\frac{{{a}}}{{\sqrt{{{a}}}}}', rf'\sqrt{{{a}}}')
    assert not equivalent(rf'\sqrt{{{a}}}+\sqrt{{{b}}}', rf'\sqrt{{{a+b}}}')
    assert not equivalent(rf'\sqrt{{{a}}}', rf'\sqrt{{{a+1}}}')


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(-30, 30), min_size=2, max_size=6, unique=True), st.randoms(use_true_random=False))
def test_lists_and_sets_have_no_order_and_tuples_have(items, rnd):
    gold, other = ', '.join(map(str, items)), items[:]
    rnd.shuffle(other)
    assert equivalent(', '.join(map(str, other)), gold)
    assert equivalent(r'\{' + ','.join(map(str, other)) + r'\}', gold)
    assert equivalent(f'({", ".join(map(str, other))})', f'({gold})') == (other == items)
    assert not equivalent(', '.join(map(str, other[1:])), gold) and not equivalent(gold + ', 99', gold)


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=60), st.text(max_size=60))
def test_any_text_gives_a_verdict_and_is_judged_alike_twice(a, b):
    j = judge(a, b)
    assert j == judge(a, b) and (not j.equal or j.how in ('exact', 'text'))
    assert extract(a) is None or isinstance(extract(a), str)


PIECES = [*r'\frac { } 1 23 x ( ) [ ] , + - ^ _ ! \sqrt \pm \cup = < \{ \} | \sin \pi \infty \text{cm} % / \le'.split(),
          *r'& and . : e i \begin{pmatrix} \end{pmatrix} \\ \boxed{ ^\circ \overline \in'.split(), ' ']

@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=30))
def test_any_heap_of_tokens_gives_a_verdict(pieces):
    s = ''.join(pieces)
    assert judge(s, '41').how in ('exact', 'text', 'one side not understood', 'nothing given', 'too long')
    j = judge(s, s)
    assert j.equal or j.how in ('exact', 'text', 'nothing given')
    judge('41', s)


QUICK = 0.2     # seconds

def attacks():
    rnd = random.Random(3)
    return {'python': "__import__('os').environ.__setitem__('GRAIL_PROBE','1')", 
            'touch': "__import__('pathlib').Path('{}').touch()", 'call': 'exec("raise SystemExit")',
            'brackets': '('*999 + '1' + ')'*999, 'braces': '{'*1999,
            'fractions': r'\frac{'*280 + '1', 'boxes': r'\boxed{'*250 + '7' + '}'*249, 'tower': '9^{9^{9^{9}}}',
            'big exponent': '10^{1000000000}', 'power': '(x+1)^{1000000000}', 'factorials': '((((9!)!)!)!)',
            'factorial': '1000000!', 'megabytes': '1'*3_000_000, 'many boxes': r'\boxed{'*400_000,
            'one box': r'\boxed{' + '{'*3_000_000, 'many tags': '<answer>'*300_000, 'closing tags': '</answer>'*300_000,
            'digits': '7'*1999,
            'roots': '+'.join(rf'\sqrt{{{rnd.randint(10**9, 10**12)}}}' for _ in range(90)), 'root': r'\sqrt{' + '7'*1900 + '}',
            'expand': '(a+b+c+d+f+g+h)^{40}', 'sum': '+'.join(rf'\frac{{1}}{{x+{p}}}' for p in range(120)), 'arabic': '٣',
            'wide': '３', 'nul': '3\x00', 'surrogate': '\ud800', 'commas': ','*1999, 'list': '1,'*999 + '1',
            'semicolons': '1;'*900, 'pm': r'\pm'*600, 'bars': '|'*1999, 'sets': r'\{'*19 + r'\pm1' + r'\}'*19,
            'hashes': '####'*300_000, 'numbers': '1,'*900_000, 'dots': '1.'*900_000, 'eos': '<|'*900_000,
            'binomial': r'\binom{2500}{1250}^{20}',
            'matrix': r'\begin{pmatrix}' + '&'.join('1'*900) + r'\end{pmatrix}', 'nested roots': r'\sqrt{1+'*19 + 'x' + '}'*19,
            'fractional exponents': '(' + ','.join([r'(\sqrt2+\sqrt3+\sqrt5+\frac{1}{1+n!})^{7}']*9) + ')',
            'powers of roots': r'(\sqrt2+\sqrt3+\sqrt5+e^{i\pi (\sqrt2+\sqrt3+\sqrt5+\frac{1}{1+n!})^{7}})^{7}',
            'powers': '+'.join(f'3^{{{k}}}' for k in range(14000, 14150)), 'repeating': r'0.\overline{' + '1'*1800 + '}'}

def seconds(f, tries=3):
    "Least seconds of this thread's own time in `tries` calls, and what the first one gave; one call is enough if it is fast"
    times, got = [], None
    while len(times) < tries and not any(t < QUICK/2 for t in times):
        _gold.cache_clear()
        start = time.thread_time()
        answer = f()
        times.append(time.thread_time() - start)
        if len(times) == 1: got = answer
    return min(times), got

def slowest(texts, out):
    "Most seconds that a verdict took, and whether any was a yes"
    worst, any_yes = ('', 0.), []
    gc.collect()
    gc.disable()              # a collection of everything that the other tests left behind is not the checker's time
    for what, t in texts.items():
        for f in (lambda: equivalent(t, '3'), lambda: equivalent('3', t), lambda: bool(extract(t)) and False):
            took, yes = seconds(f)
            if yes: any_yes.append(what)
            worst = max(worst, (what, took), key=lambda w: w[1])
    gc.enable()
    out.append((worst, any_yes))


def test_hostile_text_gets_a_quick_no_and_runs_no_code(tmp_path):
    texts, out = attacks(), []
    texts['touch'] = texts['touch'].format(tmp_path/'planted')
    slowest(texts, out)
    (what, took), yes = out[0]
    assert not yes and took < QUICK, (what, took, yes)
    assert 'GRAIL_PROBE' not in os.environ and not (tmp_path/'planted').exists()


def test_hostile_text_from_threads():
    out = []
    threads = [threading.Thread(target=slowest, args=(attacks(), out)) for _ in range(3)]
    for t in threads: t.start()
    for t in threads: t.join()
    assert len(out) == 3 and all(not yes and w[1] < QUICK for w, yes in out), out


def _in_process(q):
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    out = []
    slowest(attacks(), out)
    status = open('/proc/self/status').read()           # ru_maxrss begins with what the parent had
    q.put((out[0], int(status.split('VmHWM:')[1].split()[0])))


def test_hostile_text_from_four_processes_in_bounded_memory():
    ctx = multiprocessing.get_context('spawn')
    q = ctx.Queue()
    ps = [ctx.Process(target=_in_process, args=(q,)) for _ in range(4)]
    for p in ps: p.start()
    got = [q.get(timeout=120) for _ in ps]
    for p in ps: p.join()
    assert all(not yes and w[1] < QUICK and kb < 400_000 for (w, yes), kb in got), got


def test_extraction_never_looks_behind_the_end():
    assert extract(r'\boxed{4}<|im_end|>\boxed{5}') == '4' and extract('4 </s> 5') == '4'
    assert extract('<SOLUTION>4</SOLUTION><SOLUTION>') is None and extract(r'\boxed{\frac{1}{2}') is None
    assert final_number('He has 1,200 - 200 = 1,000 left') == '1000' and final_number('no number') is None


@needs_data
def test_real_answers():
    math500 = json.loads(Path(DATA, 'math500_test.json').read_text())
    gsm8k = [json.loads(line) for line in open(Path(DATA, 'gsm8k_test.jsonl'))]
    amc23 = [json.loads(line) for line in open(Path(DATA, 'amc23_test.jsonl'))]
    sets = {'math': [(r['answer'], extract(r['solution'])) for r in math500],
            'gsm8k': [(r['answer'].split('####')[1].strip(), extract(r['answer'])) for r in gsm8k],
            'amc': [(str(r['answer']), str(int(r['answer']))) for r in amc23]}
    for what, rows in sets.items():
        assert all(equivalent(a, a) for a, _ in rows) and all(b and equivalent(b, a) for a, b in rows), what
        strays = [(a, b) for (a, _), (b, _) in zip(rows, rows[1:]+rows[:1]) if equivalent(a, b) and plain(a) != plain(b)]
        assert strays == ([('5', 'x=5')] if what == 'math' else []), strays
    values = sorted({a for a, _ in sets['math']})
    rnd = random.Random(0)
    drawn = [rnd.sample(values, 2) for _ in range(4000)]
    assert all(extract('\\boxed{' + a + '}') == a for a in values)
    same = {('-2,1', '1,-2'), (r'10,\!080', '10080'), ('120', r'120^\circ'), ('15', r'15\mbox{ cm}^2'),
            (r'2 \sqrt{5}', r'2\sqrt{5}'), ('30', r'30^\circ'), ('36', r'36^\circ'), (r'\$36', '36'), ('5', 'x=5'),
            ('90', r'90^\circ'), (r'\frac14', r'\frac{1}{4}')}                   # all that have another text and the same value
    assert [(a, b) for a, b in drawn if equivalent(a, b) and not {(a, b), (b, a)} & same] == []
    assert all(equivalent(a, b) and equivalent(b, a) for a, b in same)


def test_throughput_is_thousands_a_second():
    simple = [(str(a), str(b)) for a in range(40) for b in (a, a+1)]
    latex = [(p, g) for p, g, _ in GATHERED if '\\' in p+g]
    for pairs, least in ((simple, 2000), (latex, 200)):
        n, start = 0, time.thread_time()
        while time.thread_time() - start < 0.3:
            for p in pairs: equivalent(*p)
            n += len(pairs)
        assert n/(time.thread_time() - start) > least


@pytest.mark.skipif(not find_spec('math_verify'), reason='math-verify is not installed')
def test_the_second_opinion_is_killed_and_comes_back():
    with SecondOpinion(seconds=20, megabytes=1500) as mv:
        assert mv.ask('1/2', r'\frac12') is True and mv.ask('1', '2') is False
        first = mv.process.pid
        mv.seconds = 0.2
        os.kill(first, signal.SIGSTOP)                  # a worker that never answers
        assert mv.ask('3', '3') is None and mv.process is None
        mv.seconds = 20
        assert mv.ask('3', '3') is True and mv.process.pid != first
        assert mv.ask('x'*3000, '1') is None


@pytest.mark.parametrize('text', ['x_{', '2_{', 'e_${', '3_{', 'x_', 'x^', 'x^{', r'\frac', r'\frac{',
                                  r'\sqrt', r'\sqrt[', r'\sqrt[3]{', r'\begin{pmatrix}', '(', '[1,', r'\{', 'x_{1', r'\text{'])
def test_a_text_that_ends_too_early_is_no_answer_and_no_error(text):
    for a, b in ((text, '3'), ('3', text), (text + ' ', 'x')): assert equivalent(a, b) is False
