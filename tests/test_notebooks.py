"Every notebook runs from top to bottom; cells with a flag (`#| slow`) run when the flag is asked for."
import pytest
from nbtool import ROOT, notebooks, run


@pytest.mark.parametrize('path', notebooks(), ids=lambda p: str(p.relative_to(ROOT/'nbs')))
def test_notebook_runs(path, flags):
    import matplotlib.pyplot as plt
    import torch
    try: run(path, flags, save=False)
    finally:
        plt.close('all')
        torch.set_num_threads(1)
