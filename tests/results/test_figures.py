"""Every figure of the grids can be drawn: from invented records of all its rows, at scale smoke."""

import matplotlib.pyplot as plt
import pytest

from lowcomm.results.experiment import load, names
from lowcomm.results.figures import figure
from lowcomm.results.grid import plan
from tests.results.synthetic import ending, patches, put


@pytest.mark.parametrize("name", [n for n in names() if "smoke" in load(n).scales and load(n).panels])
def test_a_figure_is_drawn_from_records_of_every_row(name, tmp_path):
    def there(run):
        return (tmp_path / run.path).is_file()

    for number, run in enumerate(plan([load(name)], "smoke", there)[1]):
        put(tmp_path, run, (patches if run.door == "patches" else ending)(3.0 + 0.1 * number))
    drawn = figure(name, "smoke", tmp_path)
    assert drawn is not None
    drawn.canvas.draw()
    plt.close(drawn)
