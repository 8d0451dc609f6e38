"Ambiguous texts are never equal to one of their readings; and no two expressions are equal whose values differ"
import random
from fractions import Fraction

import mpmath
import pytest
from hypothesis import given, settings, strategies as st

from grail.envs.answers import equivalent, extract, final_number, judge


def pairs(text): return [tuple(l.split(' ~ ')) for l in text.strip().splitlines()]

DIFFERENT = pairs(r"""
(1,000) ~ (1,0)
[1,000] ~ [1,0]
\{1,000\} ~ \{0,1\}
(1, 000) ~ (1,0)
1,2,345 ~ 1,2345
0,123 ~ 123
1,000 ~ 1,0
1.000,5 ~ 1,5
1,234; 5 ~ 1234, 5
f(2) ~ 2f
f(x+1) ~ f(x)+f(1)
f(x+1) ~ fx+f
g(x) ~ gx
P(A) ~ PA
h(a+b) ~ ha+hb
f[2] ~ 2f
f{(2)} ~ 2f
{f}(2) ~ 2f
{x}(2) ~ 2x
x(2) ~ 2x
y(\frac12) ~ \frac{y}{2}
y(t) ~ ty
C(5,2) ~ C(2,5)
f^2(x) ~ f(x)^2
f^2(x) ~ f^2x
f^{-1}(x) ~ \frac{x}{f}
f^{-1}(x) ~ \frac{1}{f(x)}
f_1(2) ~ 2f_1
2,1 ~ a=1,b=2
2,1 ~ (x,y)=(1,2)
\{1,2\} ~ (x,y)=(1,2)
b=1,a=2 ~ a=1,b=2
1, x=2 ~ x=2, 1
\frac{x^2-1}{x-1}=0 ~ x+1=0
\frac{x^2}{x}=0 ~ x=0
x(x-1)=0 ~ x-1=0
x^2=x ~ x=1
\frac{x^2}{x}>-1 ~ x>-1
\sqrt{x}\sqrt{x}>-1 ~ x>-1
y=\frac{x^2-1}{x-1} ~ y=x+1
x\cdot x^{-1}y=2 ~ y=2
x^{1/2}x^{1/2}=y ~ x=y
\sqrt{x^2} ~ x
\sqrt{x^2} ~ |x|+1
\sqrt{xy} ~ \sqrt x\sqrt y
(x^2)^{1/2} ~ x
\sqrt[6]{x^2} ~ \sqrt[3]{x}
\ln x^2 ~ 2\ln x
\ln(xy) ~ \ln x+\ln y
\arcsin(\sin x) ~ x
\sin^{-1}x ~ \frac{1}{\sin x}
1/2x ~ \frac{1}{2}x
1/2x ~ \frac{1}{2x}
1/2(3) ~ \frac{3}{2}
2^1/2 ~ 1
2^3! ~ 40320
2^3! ~ 64
\sqrt{11} ~ \sqrt{b}
\sqrt{13} ~ \sqrt{d}
\frac{dy}{dx} ~ \frac{y}{x}
\frac{d}{dx} ~ \frac{1}{x}
5:05 ~ 5:5
1:00 ~ 1:0
3:4 ~ \frac34
3–5 ~ -2
1A_{16} ~ A_{16}
10_2 ~ 2
10_2 ~ 10_3
10_2 ~ 10
x_{12} ~ x_1
\sin\pi/6 ~ 0
\sin\pi/6 ~ \frac12
\sin(x)^2 ~ \sin x^2
\sin x(x+1) ~ (x+1)\sin x
|a|b|c| ~ |a|b|c
√2x ~ \sqrt{2}x
√x² ~ x
1,1,2 ~ \{1,2\}
\{1,1,2\} ~ 1,1,2
(1,2) ~ [1,2]
(1,2] ~ [1,2)
(1,2) ~ 1,2
\{1,2\} ~ (1,2)
\emptyset ~ \{\emptyset\}
\emptyset ~ 0
\emptyset ~ \{0\}
\begin{pmatrix}1&2\end{pmatrix} ~ \begin{pmatrix}1\\2\end{pmatrix}
\begin{pmatrix}1&2\\3&4\end{pmatrix} ~ \begin{pmatrix}1&3\\2&4\end{pmatrix}
\begin{pmatrix}1\\2\end{pmatrix} ~ (1,2)
1\frac12 ~ \frac12
1 1/2 ~ 11/2
1 1/2 ~ \frac12
50\% ~ \frac12
5 cm ~ 5 cm^2
5\text{ m} ~ 5m
90^\circ ~ \frac{\pi}{2}
30^\circ ~ \frac{\pi}{6}
1\pm2 ~ 3
\pm1 ~ 1
\pm 2 ~ \mp 3
1+i ~ 1-i
i ~ 1
i^2 ~ 1
e ~ 2.718281828
2e-3 ~ 0.002
2e-3 ~ 2e - 4
1e5 ~ 1e6
1e5 ~ 5e
erf(x+1) ~ ref(x+1)
３ ~ 3
1２ ~ 12
x>2 ~ x\ge2
x=5 ~ y=5
5 ~ y=2x
2,3 ~ 2.3
ABCD ~ ABDC
n!! ~ (n!)!
2n! ~ (2n)!
\binom52 ~ \frac52
-2^2 ~ 4
1.2.3 ~ 1.23
10^{-1} ~ -10
\log 100 ~ \ln 100
(x^y)^z ~ x^{y^z}
x^2y ~ x^{2y}
\frac{x}{y}z ~ \frac{x}{yz}
|x| ~ x
|x-y| ~ x-y
\sqrt{-1} ~ -1
\sqrt{(-3)^2} ~ -3
(1,2)\cup(2,3) ~ (1,3)
x\ne 0 ~ x=0
0.3 ~ 0.\overline3
12_10 ~ 12
~5 ~ 5
5\text{ M} ~ 5
5\text{ M} ~ 5\text{ m}
ABCD ~ abcd
5 pm ~ 5mp
0{,}500 ~ 500
0\,123 ~ 123
0,\!250 ~ 250
5²3 ~ 5^{23}
2³4 ~ 2^{34}
1 1/2^2 ~ 9/4
1 1/2^2 ~ 5/4
1 1/2x ~ \frac32x
1 1/2/3 ~ 1/2
1 1/2\pi ~ \frac32\pi
0.3(3) ~ 0.9
0.3(3) ~ 0.33
3.5(2) ~ 7
1.5\frac12 ~ 0.75
1.5\frac12 ~ 2
5{5} ~ 25
5{5} ~ 55
{5}{5} ~ 25
10^{3}{5} ~ 5000
5\text{ cm square} ~ 5\text{ cm}
5\text{ cm square} ~ 5\text{ cm}^2
b=1,2 ~ a=1,b=2
z=1,2 ~ a=1,b=2
y=1,2 ~ x=1,y=2
sqrt 2x ~ \sqrt{2}x
sqrt 2x ~ \sqrt{2x}
\sin x\sqrt2 ~ \sin(x\sqrt2)
\sin x\sqrt2 ~ \sqrt2\sin x
\ln 2\sqrt3 ~ \ln(2\sqrt3)
\cos x\frac12 ~ \cos\frac x2
\{1,\{2\}\} ~ \{1,2\}
(1,\{2\}) ~ (1,2)
\{\{1\},\{2\}\} ~ \{1,2\}
2bag ~ 2
\ln\sqrt2 ~ \ln 2
|\sin(10^{15}\sqrt2-1414213562373092)| ~ \sin(10^{15}\sqrt2-1414213562373092)+0
|\sin(10^{16}\sqrt2-14142135623730948)| ~ -\sin(10^{16}\sqrt2-14142135623730948)
""")
EQUAL = pairs(r"""
x(x+1) ~ x^2+x
2(3) ~ 6
a(b+c) ~ ab+ac
n(n-1) ~ n^2-n
f(x+1) ~ f(1+x)
f(2)+1 ~ 1+f(2)
C(5,2) ~ C(5,2)
f(x)=2x ~ f(x)=x+x
(1,234) ~ (1, 234)
(0,100) ~ (0, 100)
1,234 ~ 1234
1,234.5 ~ 1234.5
10\!,\!000 ~ 10000
10{,}000 ~ 10000
(1{,}000, 2) ~ (1000, 2)
1e5 ~ 100000
1E-2 ~ 0.01
1e-5 ~ 0.00001
-\$5 ~ -5
$-5$ ~ -5
1,2 ~ a=1,b=2
b=2,a=1 ~ a=1,b=2
(1,2) ~ (x,y)=(1,2)
x=5 ~ 5
5 ~ x=5
\frac{x^2-1}{x-1} ~ x+1
\frac{2}{x}=0 ~ \frac{4}{x}=0
y=\frac{2}{x} ~ y=\frac{4}{2x}
y=\frac{1}{x-1} ~ \frac{2}{2x-2}=y
\frac{x}{4}+\frac{y}{9}=1 ~ 9x+4y=36
\sqrt{\frac1n} ~ \frac{1}{\sqrt n}
\sqrt{12} ~ 2\sqrt3
1\frac12 ~ 3/2
1 1/2 ~ 1.5
2^{10} ~ 1024
10_2 ~ 10_{2}
\sin(30^\circ) ~ \frac12
\sin\frac{\pi}{6} ~ \frac12
\ln 2/\ln 3 ~ \frac{\ln 2}{\ln 3}
|x||y| ~ |y||x|
3:4 ~ 3 : 4
\{1,2\} ~ 2, 1
1\pm2 ~ 3,-1
(-\infty,2)\cup(3,\infty) ~ x<2 \text{ or } x>3
2√3 ~ \sqrt{12}
-2 \le x \le 7 ~ [-2,7]
5:05 ~ 5:05
1:00 ~ 1:00
007 ~ 7
\frac{\pi}{2} ~ 0.5\pi
\begin{pmatrix}1\\2\end{pmatrix} ~ \begin{bmatrix}1\\2\end{bmatrix}
50\% ~ 50
90^\circ ~ 90
e^{i\pi} ~ -1
(1+i)^2 ~ 2i
0.\bar{3} ~ \frac13
0.\bar3 ~ \frac13
0.1\bar{6} ~ \frac16
1{,}000{,}000 ~ 1000000
1\,000\,000 ~ 1000000
5\text{ cm²} ~ 5\text{ cm²}
x²+1 ~ 1+x^2
x=\pm2 ~ -2,2
x=\pm2 ~ x=-2,2
x=-2, x=2 ~ x=\pm 2
x=1\pm\sqrt2 ~ 1-\sqrt2,1+\sqrt2
x=x ~ x=x
3 men ~ 3
1 day ~ 1
5 min ~ 5
4 cars ~ 4
a=1,2 ~ a=1,b=2
1,2 ~ x=1,y=2
\{\{1\},2\} ~ \{2,\{1\}\}
5 ~ \{5\}
sqrt12 ~ 2\sqrt3
sqrt(12) ~ 2\sqrt3
sqrt3/2 ~ \frac{\sqrt3}{2}
\ln\sqrt2 ~ \frac12\ln2
\ln(2e) ~ 1+\ln 2
\log_2\sqrt2 ~ \frac12
x>=2 ~ x\ge2
x<=2 ~ (-\infty,2]
\left(\begin{array}{c}1\\2\end{array}\right) ~ \begin{pmatrix}1\\2\end{pmatrix}
\left[\begin{array}{cc}1&2\\3&4\end{array}\right] ~ \begin{pmatrix}1&2\\3&4\end{pmatrix}
|\sin 4| ~ -\sin 4
\frac{h(a+b)}{2} ~ \frac12 h(a+b)
""")


def test_the_tables_are_long_enough(): assert len(DIFFERENT) >= 60 and len(EQUAL) >= 40

@pytest.mark.parametrize('a,b', DIFFERENT)
def test_different_answers_are_never_equal(a, b): assert not equivalent(a, b) and not equivalent(b, a)

@pytest.mark.parametrize('a,b', EQUAL)
def test_equal_answers_are_equal_both_ways(a, b): assert equivalent(a, b) and equivalent(b, a)

@pytest.mark.parametrize('a', sorted({x for p in DIFFERENT + EQUAL for x in p}))
def test_every_answer_equals_itself(a): assert equivalent(a, a)

def test_a_label_is_more_than_its_expression_only_on_the_side_of_the_right_answer():
    assert equivalent('f(x)=x^2', 'x^2') and not equivalent('x^2', 'f(x)=x^2')


# ---- names

LETTERS = 'abcdfghjklmnopqrstuvwxyzABCDFGHQXYZ'

@settings(max_examples=60, deadline=None)
@given(st.sampled_from(LETTERS), st.integers(2, 99), st.sampled_from(('(', r'\left(', '[', '{(')))
def test_a_letter_before_a_bracketed_number_is_no_product(f, k, opening):
    closing = {'(': ')', r'\left(': r'\right)', '[': ']', '{(': ')}'}[opening]
    for product in (f'{k}{f}', rf'{f}\cdot{k}', f'{k}*{f}'): assert not equivalent(f'{f}{opening}{k}{closing}', product)
    assert equivalent(rf'{f}\cdot({k})', f'{k}{f}')

@settings(max_examples=60, deadline=None)
@given(st.sampled_from('fghpqFGHPQT'), st.integers(2, 9), st.integers(2, 9))
def test_an_unknown_function_is_not_linear(f, a, b):
    assert not equivalent(f'{f}(x+{a})', f'{f}(x)+{f}({a})') and not equivalent(f'{f}({a}x)', f'{a}{f}(x)')
    assert not equivalent(f'{f}(x+{a})', rf'{f}x+{a}{f}')
    assert equivalent(f'{f}({a}+x+{b})', f'{f}(x+{a+b})')

@settings(max_examples=80, deadline=None)
@given(st.integers(2, 4000), st.sampled_from(LETTERS), st.integers(2, 5))
def test_no_root_of_a_number_is_the_root_of_a_letter(n, c, k):
    assert not equivalent(rf'\sqrt[{k}]{{{n}}}', rf'\sqrt[{k}]{{{c}}}') and not equivalent(rf'\ln {n}', rf'\ln {c}')


# ---- commas, order, times

@settings(max_examples=80, deadline=None)
@given(st.integers(1, 999), st.integers(0, 999), st.sampled_from(('()', '[]', '(]', '[)', (r'\{', r'\}'))))
def test_a_thousands_separator_in_brackets_is_not_both_a_number_and_a_pair(a, b, ends):
    lo, hi = ends
    tight = f'{lo}{a},{b:03d}{hi}'
    if b < 100: assert not equivalent(tight, f'{lo}{a},{b}{hi}')
    assert not equivalent(tight, f'{1000*a+b}') and not equivalent(tight, f'{lo}{1000*a+b}{hi}')
    assert equivalent(f'{a},{b:03d}', f'{1000*a+b}') and not equivalent(f'{a},{b:03d}', f'{a}, {b}')

@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-20, 20), min_size=2, max_size=4, unique=True), st.randoms(use_true_random=False))
def test_a_bare_list_for_named_values_keeps_their_order(values, rnd):
    names, other = 'xyzw'[:len(values)], values[:]
    rnd.shuffle(other)
    golds = ', '.join(f'{n}={v}' for n, v in zip(names, values)), f'({",".join(names)})=({",".join(map(str, values))})'
    for gold in golds:
        assert equivalent(', '.join(map(str, other)), gold) == (other == values)
        assert not equivalent(r'\{' + ','.join(map(str, values)) + r'\}', gold)
    named = [f'{n}={v}' for n, v in zip(names, values)]
    rnd.shuffle(named)
    assert equivalent(', '.join(named), golds[0])

@settings(max_examples=40, deadline=None)
@given(st.integers(1, 12), st.integers(0, 59))
def test_a_time_is_no_ratio(h, m):
    assert equivalent(f'{h}:{m:02d}', f'{h}:{m:02d}') and not equivalent(f'{h}:{m:02d}', f'{h}/{m or 1}')
    if m < 10: assert not equivalent(f'{h}:{m:02d}', f'{h}:{m}')


# ---- equations

@settings(max_examples=60, deadline=None)
@given(st.integers(-9, 9), st.integers(-9, 9), st.integers(-9, 9).filter(bool))
def test_a_factor_that_vanishes_somewhere_changes_an_equation(a, b, k):
    p, q = f'(x-({a}))', f'(x-({b}))'
    for op in '=<>':
        assert not equivalent(rf'\frac{{{p}{q}}}{{{q}}} {op} 0', f'{p} {op} 0')
        assert not equivalent(rf'{p}{q} {op} 0', f'{p} {op} 0')
        assert not equivalent(rf'{p}{q}{q}^{{-1}} {op} 0', f'{p} {op} 0')
    assert equivalent(f'({k})({p}+y)=0', f'{p}+y=0') and equivalent(rf'\frac{{{p}+y}}{{{k}}}=0', f'{p}+y=0')


# ---- values: an evaluator of its own, with numbers instead of symbols, on trees that are written in several ways

POINTS = [dict(x=mpmath.mpf('0.73'), y=mpmath.mpf('1.91')), dict(x=mpmath.mpf('2.37'), y=mpmath.mpf('0.41')),
          dict(x=mpmath.mpf('1.13'), y=mpmath.mpf('3.77')), dict(x=mpmath.mpf('-0.83'), y=mpmath.mpf('-1.39'))]

def tree(rnd, depth):
    "A random expression: (operator, arguments)"
    leaves = [('n', rnd.randint(0, 12)), ('v', 'x'), ('v', 'y'), ('c', 'pi'), ('n', rnd.choice([11, 13, 2]))]
    if depth == 0: return rnd.choice(leaves)
    op = rnd.choice('++--**//^^rsclabd')
    a, b = tree(rnd, depth-1), tree(rnd, rnd.randint(0, depth-1))
    if op == '^': return (op, a, ('n', rnd.choice([2, 3, -1, -2, 1])))
    return (op, a) if op in 'rsclab' else ('*', ('n', rnd.randint(2, 5)), a) if op == 'd' else (op, a, b)

def latex(t):
    op, *a = t
    if op == 'n': return str(a[0])
    if op == 'v': return a[0]
    if op == 'c': return r'\pi'
    A = latex(a[0])
    if op in '+-': return rf'\left({A}\right) {op} \left({latex(a[1])}\right)'
    if op == '*': return rf'\left({A}\right)\left({latex(a[1])}\right)'
    if op == '/': return rf'\frac{{{A}}}{{{latex(a[1])}}}'
    if op == '^': return rf'\left({A}\right)^{{{latex(a[1])}}}'
    return {'r': rf'\sqrt{{{A}}}', 's': rf'\sin\left({A}\right)', 'c': rf'\cos\left({A}\right)', 'l': rf'\ln\left({A}\right)',
            'a': rf'\left|{A}\right|', 'b': rf'\sqrt[3]{{{A}}}'}[op]

def value(t, at):
    op, *a = t
    if op == 'n': return mpmath.mpf(a[0])
    if op == 'v': return at[a[0]]
    if op == 'c': return mpmath.pi
    u = value(a[0], at)
    if op in 'rl' and (mpmath.im(u) or u < 0 or op == 'l' and u == 0): raise ValueError('not real')
    if op == 'b': return mpmath.sign(u)*mpmath.root(abs(u), 3)
    if op in 'rscla': return {'r': mpmath.sqrt, 's': mpmath.sin, 'c': mpmath.cos, 'l': mpmath.log, 'a': abs}[op](u)
    v = value(a[1], at)
    if op == '/' or op == '^' and v < 0:
        if abs(v if op == '/' else u) < mpmath.mpf(10)**-25: raise ValueError('division by zero')
    return {'+': u + v, '-': u - v, '*': u*v}[op] if op in '+-*' else u/v if op == '/' else u**int(v)

def values(t):
    "Values at the points where there is one"
    out = []
    for at in POINTS:
        try: out.append(value(t, at))
        except (ValueError, ZeroDivisionError, OverflowError): out.append(None)
    return out

def differ(p, q):
    "Do two lists of values differ where both are there?"
    return any(abs(u - v) > mpmath.mpf(10)**-20*(1 + abs(u)) for u, v in zip(p, q) if u is not None and v is not None)

def disagreements(seed, n):
    "Pairs of `n` random expressions that are called equal and whose values differ, and how many pairs were called equal"
    rnd, bad, same = random.Random(seed), [], 0
    with mpmath.workdps(40):
        made = [(latex(t), values(t)) for t in (tree(rnd, rnd.choice([1, 1, 2, 2, 3])) for _ in range(n))]
        made = [m for m in made if any(v is not None for v in m[1])]
        for i, (a, p) in enumerate(made):
            for b, q in made[:i]:
                if not equivalent(a, b): continue
                same += a != b
                if differ(p, q): bad.append((a, b))
    return bad, same

def test_no_two_random_expressions_are_equal_whose_values_differ():
    found = [disagreements(seed, 110) for seed in range(2)]
    assert [bad for bad, _ in found] == [[], []] and all(same >= 5 for _, same in found)


SPELL = '0123456789+-*/^().'

@settings(max_examples=400, deadline=None)
@given(st.text(alphabet=SPELL, min_size=1, max_size=9))
def test_plain_arithmetic_is_read_as_by_python(text):
    "Python's own reader decides: what both understand has one value, and no other"
    try: want = read_by_python(text)
    except (SyntaxError, ZeroDivisionError, ValueError, OverflowError, TypeError): return
    if abs(want.numerator) > 10**30 or want.denominator > 10**30: return
    exact = f'{want.numerator}/{want.denominator}'
    if judge(text, '1').how == 'exact': assert equivalent(text, exact), (text, exact)
    assert not equivalent(text, f'{want.numerator + want.denominator}/{want.denominator}')

def read_by_python(text):
    "A sum of products of powers as a fraction, by Python's syntax tree"
    import ast
    def walk(n):
        if isinstance(n, ast.Expression): return walk(n.body)
        if isinstance(n, ast.Constant): return Fraction(str(n.value))
        if isinstance(n, ast.UnaryOp): return -walk(n.operand) if isinstance(n.op, ast.USub) else walk(n.operand)
        if not isinstance(n, ast.BinOp): raise SyntaxError(text)
        a, b = walk(n.left), walk(n.right)
        if isinstance(n.op, ast.Pow):
            if b.denominator != 1 or abs(b) > 20: raise ValueError('power')
            return a**int(b)
        return {ast.Add: lambda: a + b, ast.Sub: lambda: a - b, ast.Mult: lambda: a*b, ast.Div: lambda: a/b}[type(n.op)]()
    if '//' in text or '**' in text: raise SyntaxError(text)
    try: return walk(ast.parse(text.replace('^', '**'), mode='eval'))
    except (KeyError, MemoryError) as e: raise SyntaxError(text) from e


# ---- final numbers

NUMBERS = {'1e5': '1e5', 'it is 2.5E-3.': '2.5E-3', '1.2.3': '1.2.3', '5:30': '5:30', r'-\$5': '-5', '-$5': '-5',
           '$-5': '-5', '-€5': '-5',
           '−5': '-5', '1 1/2': '1 1/2', '3/4': '3/4', r'10\!,\!000': '10000', '1,234.5': '1234.5',
           '5 million': '5 million', '10-5': '5',
           '2^{10}': None, r'\sqrt{5}': None, r'25\pi': None, '5x': None, 'x_5': None, '１２': None,
           '5': '5', 'a 5.': '5', '1/2/2020': '1/2/2020', '3×10⁵': None, 'is 5½.': None, '½5': None, '5²': None, '٣5': None,
           '5２': None, '$5M': None, '5K': None, '5 millions': '5 millions', '5-dozen': '5-dozen', '5 tenths': '5 tenths',
           'It is 12 500': '12 500', '1\xa0500': '1\xa0500', "1'000": "1'000", 'so 1,5': '1,5', '12,34': '12,34',
           '5,000,00': '5,000,00', 'x = - 5': '-5', '= -$ 5': '-5', 'it is - 5': '-5', 'is negative 5': None, 'is minus 5': None,
           'ratio is 5 : 6': None, '5±1': None, r'5 \pm 1': None, '5 and a half': None, '5 squared': None, r'5\cdot 10': None,
           '2**3': None, '5 x 3': None, '= 5 + x': None, '= 5(x+y)': None, r'5 \ln x': None, '5L': '5', '**5**': '5',
           'In 2020 500': '500', 'list:\n- 5 apples': '5', '5 a day': '5', '5 and 6': '6', '1,234,567': '1234567'}

@pytest.mark.parametrize('text,number', NUMBERS.items())
def test_a_final_number_is_taken_whole(text, number): assert final_number(text) == number

PARTS = {'5²': '5', '5½': '5', '5M': '5', '5 dozens': '5', '5-million': '5', '12 500': '500', "1'000": '0', '1,5': '5', '5,000,00': '0',
         '5 : 6': '6', '5±1': '1', '5 and a half': '5', 'negative 5': '5', '= - 5': '5', '5 + x': '5', r'5 \times x': '5', '5/x': '5'}

@pytest.mark.parametrize('text,part', PARTS.items())
def test_a_part_of_an_answer_is_never_the_answer(text, part):
    for made in (text, f'the answer is {text}.', f'#### {text}'): assert not equivalent(extract(made) or '', part), made

@settings(max_examples=80, deadline=None)
@given(st.integers(2, 999), st.sampled_from('²³⁴½¼¾⅓٣２⁵'), st.sampled_from(('{}', 'it is {}', '#### {}')))
def test_a_numeral_of_another_kind_beside_a_number_belongs_to_it(n, other, frame):
    for text in (f'{n}{other}', f'{other}{n}'): assert not equivalent(extract(frame.format(text)) or '', str(n)), text

@settings(max_examples=60, deadline=None)
@given(st.integers(1, 99), st.integers(2, 9), st.integers(2, 99))
def test_a_superscript_ends_before_the_next_digit(a, k, b):
    for sign, power in (('²', 2), ('³', 3)): assert not equivalent(f'{a}{sign}{k}', f'{a}^{{{power}{k}}}')

@settings(max_examples=60, deadline=None)
@given(st.integers(0, 999), st.sampled_from((r'\,', '{,}', r',\!')))
def test_nothing_separates_thousands_after_a_zero(n, comma):
    assert not equivalent(f'0{comma}{n:03d}', str(n)) and equivalent(f'1{comma}{n:03d}', str(1000 + n))

ROOT2 = 14142135623730950488016887242096980785696718753769

@settings(max_examples=60, deadline=None)
@given(st.integers(8, 30), st.integers(-6, 6))
def test_rounding_never_gives_a_sine_its_sign(digits, k):
    m = ROOT2//10**(49 - digits) + k                             # 10^digits √2 - m is a small number that a float may not know
    sine = rf'\sin(10^{{{digits}}}\sqrt2-{m})'
    with mpmath.workdps(60): positive = mpmath.sin(mpmath.mpf(10)**digits*mpmath.sqrt(2) - m) > 0
    assert not equivalent(f'|{sine}|', f'-{sine}' if positive else f'0+{sine}')

def test_a_part_of_a_number_is_never_the_answer():
    parts = {'1e5': '5', '1.2.3': '3', '5:30': '30', r'-\$5': '5', '2^{10}': '10', '1 1/2': '1/2', r'25\pi': '25'}
    for text, part in parts.items():
        for made in (text, f'the answer is {text}.', f'#### {text}'): assert not equivalent(extract(made) or '', part), made

def test_the_last_box_wins_and_must_be_balanced():
    assert extract(r'\boxed{4} \boxed{5}') == '5' and extract(r'\boxed{5}\boxed{') is None
    assert extract(r'\boxed{\frac{1}{2}}}') == r'\frac{1}{2}'
    assert not equivalent(r'\boxed{4} ... \boxed{', '4') and equivalent(r'\boxed{4} ... \boxed{5}', '5')
