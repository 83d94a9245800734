"""Reports whose curves have quick bands."""

from functools import partial

import pytest

from guerdon.comparison import report_charts


@pytest.fixture(autouse=True, scope="session")
def _quick_bands():
    """A band of 100 resamples in place of 2,000: half of the time of a report, and no test here reads one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report_charts, "curve_band", partial(report_charts.curve_band, reps=100))
        yield
