"With the rule tasks = 'curriculum' miners, validators and replays pick the same tasks, by the table in the checkpoint"
import json
from collections import Counter
from dataclasses import replace

import pytest

from grail.core.basics import ConfigError, FormatError, canonical_json
from grail.core.params import PROFILES
from grail.envs.base import Outcome, cut_completion, environments, register
from grail.envs.curriculum import Curriculum, SolveRates
from grail.envs.single import Question
from grail.envs.sort import Sort, digits_of
from grail.roles.base import CURRICULUM, ModelCache, checkpoint_env
from grail.roles.miner import Miner
from grail.roles.rates import agreed, check_rates, next_rates, results
from grail.roles.replay import replay
from grail.roles.simulate import FIRST, begin, keypair, settings
from grail.verify.pipeline import sign_verdict, verdict_from_dict


class FewSorts(Sort):
    "Twelve named sorting problems, of which the first digit counts; the last six ask for the other order, which no model does"
    id = 'sort12'
    def __init__(self, tokenizer, data=None):
        super().__init__(tokenizer, data)
        ds = [digits_of('train', s) for s in range(12)]
        self.train = [Question(d, d, ''.join(sorted(d))[::1 if i < 6 else -1]) for i, d in enumerate(ds)]
    def task_of(self, question, seed): return replace(self._task(seed, question.text), answer=question.answer)
    def question(self, seed): return self.train[(seed % 2**64)*len(self.train) >> 64]
    def task(self, seed): return self.task_of(self.question(seed), seed)
    def evaluate(self, task, completion_ids):
        done = cut_completion(completion_ids, self.vocab, self.eos_id)
        right = done.ids[:1] == self.encode(task.answer)[:1]
        return Outcome(float(right), right)


class Plain(Miner):
    "Answers the tasks of the plain rule, as if there were no curriculum"
    behaviour = 'plain'
    def tasks(self, loaded, open): return super().tasks(replace(loaded, env=loaded.env.env), open)


WINDOWS = 5

@pytest.fixture(scope='module')
def run(tmp_path_factory):
    if 'sort12' not in environments(): register('sort12', FewSorts)
    out = tmp_path_factory.mktemp('curriculum')/'run'
    sim = begin(settings(windows=WINDOWS, groups=6, miners='honest:2', validators=3, eval_every=0, eval_tasks=5,
                         eval_samples=1, env='sort12', rules=dict(tasks='curriculum', audit_fraction=1.0)), out)
    plain = Plain(keypair(0, 'plain 0'), groups=6, name='plain-0', network=sim.network, models=sim.models)
    sim.chain.register(plain.keypair)
    sim.chain.commit(plain.keypair, plain.hotkey)
    sim.miners.append(plain)
    verdicts, lines = {}, []
    for i in range(WINDOWS):
        line, miners = sim.step(FIRST + i)
        lines += [line]
        for m in miners: verdicts[m['name'], i - 1] = m
    return sim, lines, verdicts


def test_no_profile_has_it_on(): assert {p.tasks for p in PROFILES.values()} == {'uniform'}

def test_honest_work_passes_in_every_window_and_validators_agree_to_the_byte(run):
    _, lines, verdicts = run
    assert all(l['verdicts_agree'] for l in lines)
    honest = [m for (name, _), m in verdicts.items() if name.startswith('honest')]
    audited = [m for m in honest if m['audited']]
    assert len(honest) == 2*(WINDOWS - 1) and audited and all(m['passed'] for m in audited)

def test_the_table_fills_prefers_what_is_solved_sometimes_and_follows_from_public_verdicts(run):
    sim, _, _ = run
    models = ModelCache(sim.network)
    assert all(check_rates(sim.network, models, FIRST + i) for i in range(WINDOWS))
    env = models.load(FIRST + WINDOWS - 1).env
    assert isinstance(env, Curriculum) and env.rates.counts
    known = {q.id: env.weight(q.id) for q in env.env.train if env.rates.counts.get(q.id, (0, 0))[1] >= 8000}
    assert 1 in known.values() and set(known.values()) <= {1, 8}
    drawn = Counter(env.question(s).id for s in range(0, 2**64, 2**54))
    light, heavy = ([drawn[q.id] for q in env.env.train if env.weight(q.id) == w] for w in (1, 8))
    assert light and heavy and max(light)*4 < min(heavy)

def test_a_miner_that_answers_another_task_than_the_assigned_one_fails(run):
    _, _, verdicts = run
    audited = [verdicts['plain-0', i] for i in range(WINDOWS - 1) if verdicts['plain-0', i]['audited']]
    failed = [m for m in audited if m['passed'] is False]
    assert failed and all('environment' in m['failed_checks'] for m in failed)
    assert all(set(m['failed_checks']) <= {'environment'} for m in failed)       # nothing else is wrong with its work

def test_replays_give_the_same_verdicts(run):
    sim, _, _ = run
    files = sorted((sim.out/'buckets').glob('*/verdicts/**/*.json'))
    fresh = ModelCache(sim.network)
    found = [replay(p.read_bytes(), sim.network, fresh) for p in files]
    assert len(found) >= 12 and all(f.confirmed for f in found), [f.reasons for f in found if not f.confirmed]
    assert {f.verdict.passed for f in found} == {True, False}

def test_a_minority_of_stake_and_failed_audits_decide_nothing(run):
    sim, _, verdicts = run
    window = FIRST + 1
    due = ModelCache(sim.network).load(window - 1)
    miners = {m['hotkey'] for (_, i), m in verdicts.items() if i == 1 and m['passed']}
    before = agreed(sim.network, window, due)
    assert {m for m, _, _ in before} == miners and before
    bucket = sim.network.bucket(sim.validators[0].hotkey)
    for f in (sim.out/'buckets').glob(f'{sim.validators[0].hotkey}/verdicts/{int(window):012d}/**/*.json'):
        data = json.loads(f.read_bytes())
        lie = replace(verdict_from_dict(data['verdict']), passed=True, sampled_groups=(0,), reason='')
        f.write_bytes(sign_verdict(sim.validators[0].keypair, lie))
    assert bucket and agreed(sim.network, window, due) == before                  # two of three validators say the same as before

def test_the_results_of_a_window_are_those_of_the_audited_groups(run):
    sim, _, _ = run
    due = ModelCache(sim.network).load(FIRST)
    rows = results(sim.network, FIRST + 1, due)
    assert rows and all(n == due.params.rollouts_per_group and 0 <= s <= n for _, s, n in rows)
    assert {q for q, _, _ in rows} <= {q.id for q in due.env.env.train}
    assert next_rates(sim.network, ModelCache(sim.network), SolveRates(), FIRST + 1).counts

def test_a_checkpoint_without_a_table_or_with_a_broken_one_is_refused(run):
    sim, _, _ = run
    tok = sim.trainer.tokenizer
    for files in ({}, {CURRICULUM: b'[]'}, {CURRICULUM: b'{"a":[2,1]}'}, {CURRICULUM: canonical_json({'a': [0.5, 1]})}):
        with pytest.raises(FormatError): checkpoint_env(files, sim.params, tok)
    assert isinstance(checkpoint_env({CURRICULUM: b'{}'}, sim.params, tok), Curriculum)
    assert isinstance(checkpoint_env({}, replace(sim.params, tasks='uniform'), tok), FewSorts)

def test_an_environment_without_questions_is_refused_before_the_run(tmp_path):
    with pytest.raises(ConfigError, match='list of questions'):
        begin(settings(windows=1, groups=1, miners='honest', rules=dict(tasks='curriculum')), tmp_path/'run')

def test_a_restored_trainer_has_the_same_table(run, tmp_path):
    sim, _, _ = run
    sim.trainer.save(tmp_path/'t')
    rates, counted = sim.trainer.rates, sim.trainer.counted
    sim.trainer.rates, sim.trainer.counted = SolveRates(), None
    sim.trainer.restore(tmp_path/'t')
    assert sim.trainer.rates.digest() == rates.digest() and sim.trainer.counted == counted
