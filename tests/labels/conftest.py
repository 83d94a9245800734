"""One trained policy for all tests of this folder."""

import pytest


@pytest.fixture(scope="session")
def policy(tmp_path_factory):
    from label_studies import trained

    return trained(tmp_path_factory.mktemp("policy"))
