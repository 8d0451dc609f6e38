"""Build the site into _docs/ and check it.

    python tests/docs.py [--renderer quarto|smalldocs]

nbdev prepares the pages (it runs the imports and exported cells for the reference tables; all other outputs are the saved ones), in a copy,
so that the working tree is left alone. \
Quarto renders them where it is installed; else smalldocs, which reads the same `_quarto.yml`. Then, with
either: every notebook has its page, and every link and picture inside the site exists, anchors too. Nothing is fetched."""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parent.parent
PARTS = ('nbs', 'grail', 'settings.ini', 'setup.py', '_quarto.yml', 'README.md')
STEM = re.compile(r'^\d+[a-z]?_')                        # nbdev leaves the number out of a page's address

PREPARE = '''
from nbdev.quarto import refresh_quarto_yml
from nbdev.serve import proc_nbs
if __name__ == '__main__':
    refresh_quarto_yml()
    proc_nbs(force=True, n_workers=2)
'''


def sh(*args, cwd, **env):
    done = subprocess.run([str(a) for a in args], cwd=cwd, env={**os.environ, 'MPLBACKEND': 'agg', **env})
    if done.returncode: sys.exit(f'{" ".join(map(str, args))}: exit code {done.returncode}')

def stage(folder):
    "Copy what the site is made of into `folder` and let nbdev write its `_proc`"
    for name in PARTS:
        src = ROOT/name
        if src.is_dir(): shutil.copytree(src, folder/name, symlinks=True, ignore=shutil.ignore_patterns('__pycache__', '.*'))
        else: shutil.copy2(src, folder/name)
    (folder/'prepare.py').write_text(PREPARE)
    env = {'PYTHONPATH': str(folder)}
    os.environ.pop('IN_TEST', None)
    sh(sys.executable, 'prepare.py', cwd=folder, **env)
    return folder/'_proc'

def page_of(nb): return nb.with_name(STEM.sub('', nb.stem) + '.html')        # of a path of a notebook, relative to nbs/

def renumber(proc):
    "For smalldocs: name each notebook like its page, in the links too, since it does not read `output-file`"
    link = re.compile(r'((?:[\w.-]+/)*)\d+[a-z]?_([\w-]+\.ipynb)')
    for path in [*proc.rglob('*.ipynb'), proc/'_quarto.yml']:
        text = path.read_text(encoding='utf-8')
        if path.suffix == '.yml': text = link.sub(r'\1\2', text)
        else: text = re.sub(r'(\]\()([^)\s]+\.ipynb)', lambda m: m[1] + link.sub(r'\1\2', m[2]),
                            re.sub(r'\n *"output-file: [^"]*",', '', text))
        path.write_text(text, encoding='utf-8')
        if STEM.match(path.name): path.rename(path.with_name(STEM.sub('', path.name)))

def render(proc, renderer):
    if renderer == 'quarto': sh('quarto', 'render', proc, '--no-execute', cwd=proc.parent)
    else:
        renumber(proc)
        sh(Path(sys.executable).with_name('smalldocs'), 'render', '--strict', '--quiet', proc, cwd=proc.parent)
    return next(p for p in (proc/'_docs', proc.parent/'_docs') if p.is_dir())


class Page(HTMLParser):
    "Collects what a page links to and the anchors that it has"
    def __init__(self, path):
        super().__init__()
        self.links, self.anchors = [], {'', 'top'}
        self.feed(path.read_text(encoding='utf-8'))

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.anchors |= {attrs[k] for k in ('id', 'name') if attrs.get(k)}
        self.links += [attrs[k] for k in ('href', 'src') if attrs.get(k)]

def check(site, notebooks, host):
    "What is wrong with the rendered `site`: missing pages, links to nowhere; `host` is the address that it will have"
    wrong = [f'{nb} has no page {page_of(nb)}' for nb in notebooks if not (site/page_of(nb)).is_file()]
    pages = {p.resolve(): Page(p) for p in site.rglob('*.html')}
    for path, page in pages.items():
        for link in page.links:
            url = link.replace(host, '/', 1) if link.startswith(host) else link
            u = urlsplit(url)
            if u.scheme or u.netloc: continue
            target = (site/unquote(u.path).lstrip('/') if u.path.startswith('/') else path.parent/unquote(u.path)) if u.path else path
            target = target.resolve()
            if target.is_dir(): target /= 'index.html'
            where = f'{path.relative_to(site.resolve())}: {link}'
            if not target.is_file(): wrong.append(f'{where} leads nowhere')
            elif target in pages and unquote(u.fragment) not in pages[target].anchors: wrong.append(f'{where}: no such anchor')
    return sorted(set(wrong))


def build(out, renderer=None):
    "Build the site into `out`; returns what is wrong with it"
    sys.path.insert(0, str(ROOT/'tests'))
    from configparser import ConfigParser
    from nbtool import notebooks
    cfg = ConfigParser(delimiters=['='], interpolation=None)
    cfg.read(ROOT/'settings.ini', encoding='utf-8')
    host = cfg['DEFAULT']['doc_host'] + cfg['DEFAULT']['doc_baseurl'].rstrip('/') + '/'
    with tempfile.TemporaryDirectory() as tmp:
        site = render(stage(Path(tmp)), renderer or ('quarto' if shutil.which('quarto') else 'smalldocs'))
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(site, out)
    return check(out, [p.relative_to(ROOT/'nbs') for p in notebooks()], host)


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument('--renderer', choices=('quarto', 'smalldocs'))
    args.add_argument('--out', default=ROOT/'_docs', type=Path)
    args = args.parse_args()
    wrong = build(args.out, args.renderer)
    for line in wrong: print(line, file=sys.stderr)
    pages = len(list(args.out.rglob('*.html')))
    print(f'{pages} pages in {args.out.name}/, {len(wrong)} faults')
    return bool(wrong)


if __name__ == '__main__': sys.exit(main())
