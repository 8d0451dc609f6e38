"The live table draws a run in a terminal, and writes a log where there is none."
import io

import pytest
from rich.console import Console

from grail.monitor.live import LiveTable, miner_table

WINDOW = dict(kind='window', window=30, block=59, train={'pass@1': .2}, val={'pass@1': .1, 'pass@5': .3}, checkpoint='00'*32)
def miner(name, **kw):
    return {**dict(kind='miner', window=30, name=name, behaviour='honest', audited=True, passed=True,
                   failed_checks=[], rollouts=9, weight=.1, trusted=True), **kw}
def console(tty): return Console(file=io.StringIO(), width=120, force_terminal=tty, color_system=None)


@pytest.mark.parametrize('tty', [True, False])
def test_names_cannot_steer_the_terminal(tty):
    with LiveTable(2, console=(c := console(tty))) as t:
        t.update(WINDOW, [miner('\x1b]0;owned\x07\x1b[2J\r\n[bold]x', passed=False, failed_checks=['\x1b[5m'])])
    out = c.file.getvalue()
    assert '\x1b]0;' not in out and '\x07' not in out and '\x1b[2J' not in out and '\x1b[5m' not in out and '[bold]x' in out

def test_a_log_gets_one_line_for_each_window():
    with LiveTable(3, console=(c := console(False))) as t:
        for w in (30, 60, 90): t.update({**WINDOW, 'window': w}, [miner('a'), miner('b\nc')])
    assert [l.split(':')[0] for l in c.file.getvalue().splitlines()] == ['window 30 (1/3)', 'window 60 (2/3)', 'window 90 (3/3)']

def test_the_last_validation_stays_in_view():
    with LiveTable(2, console=(c := console(True))) as t:
        t.update(WINDOW, [miner('a')])
        t.update({**WINDOW, 'window': 60, 'val': None}, [miner('a')])
    assert 'held out 10.0 %' in c.file.getvalue().rpartition('window 60')[2]

def test_an_error_leaves_the_terminal_as_it_was():
    t = LiveTable(2, console=console(True))
    with pytest.raises(KeyError):
        with t: raise KeyError
    assert not t.live.is_started

def test_unmeasured_windows_and_large_networks_are_shown():
    c = console(False)
    LiveTable(1, console=c).update({**WINDOW, 'train': None, 'val': None}, [])
    assert 'train pass@1 –' in c.file.getvalue()
    c.print(miner_table([miner(f'm{i}') for i in range(100)], rows=5))
    assert 'and 95 more' in c.file.getvalue()

def test_a_resumed_run_goes_on_counting():
    with LiveTable(10, done=4, console=(c := console(False))) as t: t.update(WINDOW, [])
    assert '(5/10)' in c.file.getvalue()
