"The repository is in step with itself: notebooks, package, sidebar, README, versions."
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from configparser import ConfigParser
from pathlib import Path

import docs
import pytest
import yaml
from nbtool import ROOT, notebooks, readme
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LARGE_OK = {'grail/model/genesis.safetensors'}      # the embedded model's weights
SIZE     = 1_000_000                                # bytes that any other file may have


def project_files():
    "Files that are or would be committed, relative to the top"
    try: out = subprocess.run(['git', 'ls-files', '-co', '--exclude-standard', '-z'], cwd=ROOT, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError): pytest.skip('not a git checkout')
    return [p for p in sorted(set(out.decode().split('\0')) - {''}) if (ROOT/p).is_file()]

def contents(top, pattern):
    return {str(p.relative_to(top)): p.read_bytes() for p in sorted(top.rglob(pattern)) if p.is_file()}

def changes(before, after):
    return sorted(k for k in before.keys() | after.keys() if before.get(k) != after.get(k))

def nbdev(copy, code):
    env = {k: v for k, v in os.environ.items() if k != 'IN_TEST'}           # with IN_TEST nbdev_export does nothing
    done = subprocess.run([sys.executable, '-c', code], cwd=copy, env={**env, 'PYTHONPATH': str(copy)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

@pytest.fixture
def copy(tmp_path):
    "A copy of what nbdev reads"
    for p in project_files():
        if p.startswith(('nbs/', 'grail/')) or '/' not in p:
            (tmp_path/p).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT/p, tmp_path/p, follow_symlinks=False)
    return tmp_path


def test_notebooks_are_clean(copy):
    before = contents(copy/'nbs', '*.ipynb')
    nbdev(copy, 'from nbdev.clean import nbdev_clean; nbdev_clean()')
    assert not changes(before, contents(copy/'nbs', '*.ipynb')), 'run nbdev_clean'

def test_package_is_what_the_notebooks_export_and_nothing_else(copy):
    before = contents(copy/'grail', '*.py')
    for p in (copy/'grail').rglob('*.py'):
        if p != copy/'grail'/'__init__.py': p.unlink()
    nbdev(copy, 'from nbdev.doclinks import nbdev_export; nbdev_export()')
    assert not changes(before, contents(copy/'grail', '*.py')), 'these are not what nbdev_export writes; edit the notebooks, then run it'

def test_an_edit_by_hand_would_be_noticed(copy):
    before = contents(copy/'grail', '*.py')
    with open(copy/'grail'/'core'/'window.py', 'a') as f: f.write('\nBLOCK_TIME = 6.0\n')
    edited = contents(copy/'grail', '*.py')
    nbdev(copy, 'from nbdev.doclinks import nbdev_export; nbdev_export()')
    assert 'core/window.py' in changes(edited, contents(copy/'grail', '*.py')) and 'core/window.py' in changes(before, edited)


def pages(entries):
    for e in entries:
        if isinstance(e, str): yield e
        else: yield from pages(e['contents']) if 'contents' in e else [e['href']]

def sidebar():
    return list(pages(yaml.safe_load((ROOT/'_quarto.yml').read_text(encoding='utf-8'))['website']['sidebar']['contents']))

def test_every_page_stands_once_in_the_sidebar():
    there = {str(p.relative_to(ROOT/'nbs')) for p in notebooks()}
    listed = Counter(sidebar())
    assert there - listed.keys() == set(), 'missing in the sidebar of _quarto.yml'
    assert listed.keys() - there == set(), 'in the sidebar of _quarto.yml, but no such page'
    assert [p for p, n in listed.items() if n > 1] == []

def test_sections_of_the_sidebar_are_in_the_order_of_their_numbers():
    first, *sections = yaml.safe_load((ROOT/'_quarto.yml').read_text(encoding='utf-8'))['website']['sidebar']['contents']
    assert first == 'index.ipynb'
    assert [s['section'] for s in sections if s['contents'] != sorted(s['contents'])] == []

def test_pages_have_different_addresses():
    addresses = Counter(docs.page_of(p.relative_to(ROOT/'nbs')) for p in notebooks())
    assert [p for p, n in addresses.items() if n > 1] == []

def test_readme_is_the_index_page():
    assert (ROOT/'README.md').read_text(encoding='utf-8') == readme(), 'run make readme'

def test_links_and_pictures_of_the_readme_exist():
    targets = re.findall(r'\]\(([^)\s]+)\)', readme())
    assert [t for t in targets if not re.match(r'[a-z]+:|#', t) and not (ROOT/t.partition('#')[0]).exists()] == []

def test_the_first_cell_is_title_and_subtitle_and_no_more():
    "nbdev makes the page's front matter of the whole first cell: an introduction in it would not be on the site"
    from execnb.nbio import read_nb
    form = re.compile(r'# [^\n]+\n\s*\n> [^\n]+(\n\s*)*(\n- [\w-]+: [^\n]+)*\s*')
    assert [p.name for p in notebooks() if not form.fullmatch(read_nb(p).cells[0].source)] == []

def names(tree, context):
    import ast
    found = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, context)}
    if context is ast.Load: return found
    return (found | {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}
            | {n.name for n in ast.walk(tree) if isinstance(n, ast.ExceptHandler)})

def test_cells_with_imports_need_no_other_cell():
    ("For the site's reference tables nbdev runs exported cells and those with imports, no others: "
     "what shares a cell with an import has only their names")
    import ast
    from execnb.nbio import read_nb
    faults = []
    for path in notebooks():
        ran, rest = [], []
        for cell in read_nb(path).cells:
            if cell.cell_type != 'code' or re.search(r'^#\|\s*eval: *false|^\s*[%!]', cell.source, re.M): continue
            tree, exported = ast.parse(cell.source), re.search(r'^#\|\s*export', cell.source, re.M)
            imports = any(isinstance(n, (ast.Import, ast.ImportFrom)) for n in ast.walk(tree))
            (ran if exported or imports else rest).append((cell, tree, exported))
        absent = set().union(*(names(t, ast.Store) for _, t, _ in rest)) - set().union(*(names(t, ast.Store) for _, t, _ in ran))
        faults += [f'{path.name} #{cell.get("id")} imports and needs {", ".join(sorted(need))}: put the import into a cell of its own'
                   for cell, tree, exported in ran if not exported and (need := names(tree, ast.Load) & absent)]
    assert not faults, '\n'.join(faults)


def test_no_large_files():
    assert [p for p in project_files() if p not in LARGE_OK and (ROOT/p).stat().st_size > SIZE] == []
    assert [p for p in LARGE_OK if (ROOT/p).exists() and (ROOT/p).stat().st_size > SIZE] == []

def test_text_names_no_folder_of_somebodys_machine():
    tops = '|'.join(('home', 'root', 'Users', 'tmp', 'private', 'work', 'mnt', 'var/folders'))
    absolute = re.compile(r'(?<![\w.:/+<~*)}\]-])/(?:' + tops + r')/[\w.-]')
    own = [str(ROOT) + '/', str(Path.home()) + '/']
    found = []
    for p in project_files():
        try: text = (ROOT/p).read_text(encoding='utf-8')
        except UnicodeDecodeError: continue
        text = re.sub(r'"image/\w+": "[^"]*"', '', text)                    # base64 has slashes, too
        found += [f'{p}: {line.strip()[:120]}' for line in text.splitlines() if absolute.search(line) or any(o in line for o in own)]
    assert not found, '\n'.join(found)


def settings():
    cfg = ConfigParser(delimiters=['='], interpolation=None)
    cfg.read(ROOT/'settings.ini', encoding='utf-8')
    return cfg['DEFAULT']

def pinned():
    lines = (ROOT/'constraints.txt').read_text().splitlines()
    return {canonicalize_name(name): version for name, _, version in (l.partition('==') for l in lines if l and not l.startswith('#'))}

def test_constraints_are_exact_and_allowed_by_the_settings():
    pins = pinned()
    assert all(re.fullmatch(r'[\w.!]+', v) for v in pins.values())
    wanted = [Requirement(r) for k in settings() if k in ('requirements', 'dev_requirements', 'chain_requirements', 'smollm_requirements')
              for r in settings()[k].split()]
    assert [str(r) for r in wanted if canonicalize_name(r.name) not in pins] == []
    assert [str(r) for r in wanted if not r.specifier.contains(pins[canonicalize_name(r.name)])] == []

def imports(path):
    "Names of the top packages that a Python file imports, anywhere in it"
    import ast
    for n in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
        if isinstance(n, ast.Import): yield from (a.name.partition('.')[0] for a in n.names)
        if isinstance(n, ast.ImportFrom) and not n.level: yield n.module.partition('.')[0]

@pytest.mark.parametrize('folder', ['grail', 'tests'])
def test_what_is_imported_is_required_by_the_settings(folder):
    "or by something that they require"
    from importlib.metadata import distributions, packages_distributions
    installed = {canonicalize_name(d.metadata['Name']): d for d in distributions()}
    asked = {canonicalize_name(Requirement(r).name) for k in settings() if k.endswith('requirements') for r in settings()[k].split()}
    asked |= {canonicalize_name(Requirement(r).name) for a in asked if a in installed for r in installed[a].requires or []}
    owns, ours = packages_distributions(), {p.stem for p in (ROOT/'tests').rglob('*')} | {'grail'}
    used = {m: p.name for p in sorted((ROOT/folder).rglob('*.py')) for m in imports(p) if m not in sys.stdlib_module_names | ours}
    assert {m: f for m, f in used.items()
            if not asked & {canonicalize_name(d) for d in owns.get(m, [m])}} == {}, 'in no requirement of settings.ini'

def test_this_environment_is_the_pinned_one():
    from importlib.metadata import distributions
    pins = pinned()
    have = {canonicalize_name(d.metadata['Name']): d.version.partition('+')[0] for d in distributions()}
    assert {n: (v, pins[n]) for n, v in have.items() if n in pins and v != pins[n]} == {}


def test_dead_links_and_missing_pages_are_found(tmp_path):
    (tmp_path/'index.html').write_text('<h2 id="a"></h2><a href="#a">1</a><a href="b.html">2</a><a href="#c">3</a>'
                                       '<a href="https://grail.example/g/b.html">4</a><a href="https://elsewhere.example/x">5</a>'
                                       '<img src="no.png">')
    wrong = docs.check(tmp_path, [Path('index.ipynb'), Path('core/01_window.ipynb')], 'https://grail.example/g/')
    assert wrong == ['core/01_window.ipynb has no page core/window.html', 'index.html: #c: no such anchor',
                     'index.html: b.html leads nowhere',
                     'index.html: https://grail.example/g/b.html leads nowhere', 'index.html: no.png leads nowhere']

@pytest.mark.slow
def test_the_site_builds_without_a_fault(tmp_path):
    assert docs.build(tmp_path/'site') == []


def test_every_number_of_the_rules_and_of_the_training_is_used():
    "A setting that nothing reads promises what does not happen"
    from dataclasses import fields
    from grail.core.params import ProtocolParams
    from grail.train.learner import TrainConfig
    from grail.train.losses import LossConfig
    code = {p: p.read_text() for p in (ROOT/'grail').rglob('*.py')}
    read = lambda name: any(re.search(rf'\.{name}\b', text) for text in code.values())
    assert [f'{c.__name__}.{f.name}' for c in (ProtocolParams, TrainConfig, LossConfig) for f in fields(c) if not read(f.name)] == []
    assert not read('no_such_setting_of_ours')
