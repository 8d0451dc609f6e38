"""Run, save and export notebooks one at a time, under the same skip rules as the tests.

    python tests/nbtool.py run nbs/core/01_window.ipynb [--flags 'slow']   run, stop at the first error, save the outputs, clean
    python tests/nbtool.py export nbs/core/01_window.ipynb                 write its module (the whole package: nbdev_export)

A cell whose flag is not asked for (`#| slow`, `#| eval: false`, ...) is not run and keeps the outputs that it has. With several
notebooks each runs in a shell of its own, so that none leans on another's names."""
import argparse
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
os.environ.setdefault('MPLBACKEND', 'agg')


def skip_rule(flags):
    "A function of a cell that is true where `nbdev_test` would not run it; `flags` are the flags asked for"
    from nbdev.config import get_config
    skip = set(get_config().tst_flags.split()) - set(flags)

    def rule(cell):
        if cell.cell_type != 'code' or 'nbdev_export'+'(' in cell.source: return True
        directives = getattr(cell, 'directives_', {}) or {}
        return directives.get('eval:', [''])[0].lower() == 'false' or bool(skip & directives.keys())
    return rule


def run(path, flags=(), save=True):
    "Run the notebook at `path`, save its outputs, return the seconds it took; on an error print the cell and exit with 1"
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
    shell = CaptureShell(path, mpl_format='png')
    with working_directory(path.parent):
        for cell in runs:
            shell.cell(cell)
            if shell.exc:
                print(shell.prettytb(fname=path), file=sys.stderr)
                sys.exit(1)
    if save:
        clean_nb(nb, clean_ids=True)
        write_nb(nb, path)
    return time.time() - start


def export(path):
    "Write the module of the notebook at `path`"
    from nbdev.export import nb_export
    nb_export(Path(path).resolve())


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument('action', choices=('run', 'export'))
    args.add_argument('notebooks', nargs='+')
    args.add_argument('--flags', default='', help='flags of cells to run that are otherwise skipped, with spaces between them')
    args = args.parse_args()
    os.chdir(ROOT)
    for nb in args.notebooks:
        if args.action == 'export': export(nb)
        elif len(args.notebooks) > 1:
            import subprocess
            done = subprocess.run([sys.executable, __file__, 'run', nb, '--flags', args.flags])
            if done.returncode: sys.exit(done.returncode)
        else: print(f'{nb}: {run(nb, args.flags.split()):.1f} s')


if __name__ == '__main__': main()
