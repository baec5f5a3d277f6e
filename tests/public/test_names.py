import subprocess
import sys

import pytest

import doubtless


@pytest.mark.proves("API-1")
def test_the_public_names_are_these_and_each_can_be_imported():
    assert sorted(doubtless.__all__) == [
        "Absent",
        "BlockingDoubtless",
        "Call",
        "CouldNotAsk",
        "Doubtless",
        "DoubtlessError",
        "Effect",
        "Key",
        "Lookup",
        "NotSent",
        "Operation",
        "Outcome",
        "Present",
        "Rejected",
        "SessionRecord",
        "Settlement",
    ]
    assert [getattr(doubtless, name).__name__ for name in doubtless.__all__] == doubtless.__all__
    assert set(dir(doubtless)) >= set(doubtless.__all__)


def test_a_name_that_is_not_public_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nothing"):
        _ = doubtless.nothing


def test_importing_the_package_alone_imports_no_engine():
    program = "import doubtless, sys; print('doubtless.engine.app' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"
