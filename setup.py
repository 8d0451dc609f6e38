"Packaging: everything is read from `settings.ini`, so that a version or a requirement is written once."
from configparser import ConfigParser
from pathlib import Path
from setuptools import find_packages, setup

here = Path(__file__).parent
cfg  = ConfigParser(delimiters=['='], interpolation=None)
cfg.read(here/'settings.ini', encoding='utf-8')
cfg  = cfg['DEFAULT']

extras = {k.removesuffix('_requirements'): v.split() for k, v in cfg.items() if k.endswith('_requirements')}
extras['all'] = sorted({r for k in ('chain', 'smollm', 's3', 'drand', 'answers', 'wandb') for r in extras[k]})

setup(
    name=cfg['lib_name'], version=cfg['version'], description=cfg['description'], keywords=cfg['keywords'],
    author=cfg['author'], author_email=cfg['author_email'], license='Apache-2.0', url=cfg['git_url'],
    long_description=(here/'README.md').read_text(encoding='utf-8'), long_description_content_type='text/markdown',
    packages=find_packages(include=['grail', 'grail.*']), include_package_data=True, zip_safe=False,
    package_data={'grail': ['**/*.safetensors', '**/*.json', '**/*.html']},
    python_requires='>=' + cfg['min_python'], install_requires=cfg['requirements'].split(), extras_require=extras,
    classifiers=['Development Status :: 3 - Alpha', 'Intended Audience :: Developers', 'Programming Language :: Python :: 3.11',
                 'License :: OSI Approved :: Apache Software License'],
    entry_points={'console_scripts': cfg['console_scripts'].split(), 'nbdev': ['grail=grail._modidx:d']},
)
