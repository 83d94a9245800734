"""A judge scores the solutions of a search one by one; one that compares them cannot."""

import pytest

from guerdon.config.loading import validate
from guerdon.errors import ConfigError
from guerdon.settings.study import Study
from tables import refuses


def study(**judge):
    model = {"model_type": "judge", "judge": {"api": "local", "model": "m"}, **judge}
    search = {"model": model, "method": "best_of_n", "n": 2, "aggregation": "last", "save_dir": "out"}
    whole = {"policy": {"type": "text", "tiny": {}}, "data": {"type": "generated"}, "search": search}
    return validate(Study, whole, origin="s.yaml")


def test_a_judge_of_single_solutions_is_a_model_of_a_search():
    assert study(mode="scale").search.model.mode == "scale"


@pytest.mark.parametrize("mode", ["pairwise", "listwise"])
def test_one_that_compares_is_refused(mode):
    with refuses("search.model", "search scores solutions one by one: use mode criteria or scale"):
        study(mode=mode)


def test_an_evaluation_refuses_a_model_that_compares():
    from guerdon.models.judges.judge import JudgeModel, JudgePlan
    from guerdon.models.scores import refuse_relative

    refuse_relative(JudgeModel(None, JudgePlan("scale")), "judge")
    with pytest.raises(ConfigError, match="judge compares responses to the same prompt"):
        refuse_relative(JudgeModel(None, JudgePlan("listwise")), "judge")
