"""Run, save and export notebooks one at a time, under the same skip rules as the tests.

    python tests/nbtool.py run nbs/core/01_window.ipynb [--flags 'slow']   run, stop at the first error, save the outputs, clean
    python tests/nbtool.py export nbs/core/01_window.ipynb                 write its module (the whole package: nbdev_export)
    python tests/nbtool.py readme                                          write README.md from nbs/index.ipynb

A cell whose flag is not asked for (`#| slow`, `#| eval: false`, ...) is not run and keeps the outputs that it has. With several
notebooks each runs in a shell of its own, so that none leans on another's names."""
import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
os.environ.setdefault('MPLBACKEND', 'agg')


class CellError(Exception): "A cell of a notebook failed; the message is IPython's traceback"


def notebooks():
    "All notebooks of the project in the order of their numbers, the index first"
    found = [p for p in (ROOT/'nbs').rglob('*.ipynb') if not any(q[0] in '._' for q in p.relative_to(ROOT).parts)]
    return sorted(found, key=lambda p: (p.name != 'index.ipynb', p.name))


def skip_rule(flags):
    "A function of a cell that is true where `nbdev_test` would not run it; `flags` are the flags asked for"
    from nbdev.config import get_config
    skip = set(get_config().tst_flags.split()) - set(flags)

    def rule(cell):
        if cell.cell_type != 'code' or 'nbdev_export'+'(' in cell.source: return True
        directives = getattr(cell, 'directives_', {}) or {}
        return directives.get('eval:', [''])[0].lower() == 'false' or bool(skip & directives.keys())
    return rule


# ---- coverage: an exported cell is the same text as a piece of its module, so running the one is running the other

def code_lines(text): return [l for l in text.splitlines() if l.strip() and not l.lstrip().startswith(('#|', 'from ', 'import '))]

def module_places(nb):
    "Where each exported cell stands in its module: cell id -> (path, how far its lines are shifted); stale ones are left out"
    exp = next((m[1] for c in nb.cells if (m := re.match(r'#\|\s*default_exp\s+(\S+)', c.source))), None)
    path = ROOT/'grail'/(str(exp).replace('.', '/')+'.py')
    if exp is None or not path.exists(): return {}
    lines, places = path.read_text(encoding='utf-8').splitlines(), {}
    marks = [i for i, l in enumerate(lines) if l.startswith('# %% ')] + [len(lines)]
    cells = {c.get('id'): c.source for c in nb.cells}
    for start, end in zip(marks, marks[1:]):
        key, body = lines[start].rpartition('#')[2], lines[start+1:end]
        src = cells.get(key, '').splitlines()
        if code_lines('\n'.join(src)) != code_lines('\n'.join(body)): continue
        first = next((i for i, l in enumerate(src) if l.strip() and not l.startswith('#|')), 0)
        places[key] = str(path), start + 1 - first
    return places

class Relocate:
    "Compiles a cell under the name and the line numbers of the module that it is exported to"
    def __init__(self, shell):
        self.place, cache = None, shell.compile.cache
        def named(code, *args, **kw): return self.place[0] if self.place else cache(code, *args, **kw)
        shell.compile.cache = named
        shell.ast_transformers.append(self)

    def visit(self, tree):
        import ast
        return ast.increment_lineno(tree, self.place[1]) if self.place else tree


def run(path, flags=(), save=True):
    "Run the notebook at `path`, save its outputs, return the seconds it took; raises `CellError`"
    from execnb.nbio import read_nb, write_nb
    from execnb.shell import CaptureShell
    from fastcore.xtras import working_directory
    from nbdev.clean import clean_nb
    from nbdev.process import NBProcessor
    path, rule, start = Path(path).resolve(), skip_rule(flags), time.time()
    marked = {c.get('id'): c for c in NBProcessor(path, process=True).nb.cells}      # has the directives, parsed out of the source
    nb = read_nb(path)
    runs = [c for c in nb.cells if not rule(marked.get(c.get('id'), c))]
    for cell in runs: cell.outputs = []
    os.environ['IN_TEST'] = '1'
    if str(ROOT) not in sys.path: sys.path.insert(0, str(ROOT))
    shell, places = CaptureShell(path, mpl_format='png'), module_places(nb)
    relocate = Relocate(shell)
    with working_directory(path.parent):
        for cell in runs:
            relocate.place = places.get(cell.get('id'))
            shell.cell(cell)
            if shell.exc: raise CellError(f'{path.relative_to(ROOT)}, cell {cell.idx_} ({cell.get("id")}):\n{shell.prettytb(fname=path)}')
    if save:
        clean_nb(nb, clean_ids=True)
        write_nb(nb, path)
    return time.time() - start


def export(path):
    "Write the module of the notebook at `path`"
    from nbdev.export import nb_export
    nb_export(Path(path).resolve())


# ---- README

def output_text(out):
    "An output as Markdown; pictures belong into files, which the text of the page then names"
    data = out.get('data', {})
    if out['output_type'] == 'stream': return '\n'.join(('    '+l).rstrip() for l in ''.join(out['text']).splitlines())
    if 'text/markdown' in data: return ''.join(data['text/markdown']).strip()
    if 'image/png' in data:
        raise ValueError('the index shows a figure as an output; save it below nbs/images/ and show it with ![](images/...)')
    return '\n'.join(('    '+l).rstrip() for l in ''.join(data['text/plain']).splitlines())

def readme():
    "The text of README.md: the index page as plain Markdown, its links and pictures seen from the top folder"
    from execnb.nbio import read_nb
    parts = ['<!-- made from nbs/index.ipynb by `make readme`; edit that -->']
    for cell in read_nb(ROOT/'nbs'/'index.ipynb').cells:
        src = cell.source.strip()
        directives = re.findall(r'^#\|\s*(\w+)', src, re.M) if cell.cell_type == 'code' else []
        if cell.cell_type == 'raw' or {'hide', 'default_exp', 'export'} & set(directives): continue
        if cell.cell_type == 'markdown': parts.append(re.sub(r'(\]\()(?![a-z]+:|#|/)', r'\1nbs/', src))
        else:
            code = '\n'.join(l for l in src.splitlines() if not l.startswith('#|')).strip()
            if 'echo' not in directives and code: parts.append(f'```python\n{code}\n```')
            parts += [t for o in cell.get('outputs', []) if (t := output_text(o))]
    return '\n\n'.join(parts) + '\n'


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument('action', choices=('run', 'export', 'readme'))
    args.add_argument('notebooks', nargs='*')
    args.add_argument('--flags', default='', help='flags of cells to run that are otherwise skipped, with spaces between them')
    args = args.parse_args()
    paths = [Path(p).resolve() for p in args.notebooks]
    os.chdir(ROOT)
    if args.action == 'readme': return (ROOT/'README.md').write_text(readme(), encoding='utf-8') and None
    if not paths: return 'which notebooks?'
    for nb in paths:
        if args.action == 'export': export(nb)
        elif len(paths) > 1:
            done = subprocess.run([sys.executable, __file__, 'run', str(nb), '--flags', args.flags])
            if done.returncode: return done.returncode
        else:
            try: print(f'{nb.relative_to(ROOT)}: {run(nb, args.flags.split()):.1f} s')
            except CellError as e: return str(e)


if __name__ == '__main__': sys.exit(main())
