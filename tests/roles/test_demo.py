"""What `make demo` promises, on three seeds: the model learns, every cheat listed fails whenever it is audited \
and ends with nothing, nobody honest fails."""
import pytest

from grail.roles.simulate import begin, settings, simulate

pytestmark = [pytest.mark.slow]


@pytest.fixture(scope='module', params=[0, 1, 2], ids='seed {}'.format)
def lines(request, tmp_path_factory): return simulate(begin(settings(seed=request.param), tmp_path_factory.mktemp('demo')/'run'))


def audits(lines, honest): return [l for l in lines if l['kind'] == 'miner' and l['audited'] and (l['behaviour'] == 'honest') is honest]


def test_the_model_learns(lines):
    val = [l['val']['pass@1'] for l in lines if l['kind'] == 'window' and l['val']]
    assert val[0] <= 0.08 and val[-1] >= 0.40, val

def test_no_honest_miner_fails_once(lines):
    assert len(audits(lines, True)) > 30
    assert all(l['passed'] and not l['failed_checks'] for l in audits(lines, True))

def test_every_cheat_fails_whenever_it_is_audited(lines):
    assert {l['behaviour'] for l in audits(lines, False)} == {'noised', 'stale', 'inflated', 'tampered', 'constant', 'copied', 'replayed'}
    assert not any(l['passed'] for l in audits(lines, False))

def test_every_cheat_ends_with_nothing(lines):
    last = max(l['window'] for l in lines if l['kind'] == 'miner')
    weights = {l['name']: l['weight'] for l in lines if l['kind'] == 'miner' and l['window'] == last}
    assert all((w > 0) == n.startswith('honest') for n, w in weights.items()), weights

def test_validators_agree(lines): assert all(l['verdicts_agree'] for l in lines if l['kind'] == 'window')
