"""Some seconds of the fuzzer: the same broken folders and inputs each time, no fault in any."""

import pytest
from fuzz.pool import Pool, cases

CASES = {"folder": 50, "input": 40, "example": 12, "state": 24}


@pytest.mark.slow
def test_no_case_is_at_fault(tmp_path):
    pool = Pool(tmp_path)
    try:
        run = pool.run(cases(0, CASES))
        faults = [f"--case {case}: {fault.name}" for case, fault in run]
    finally:
        pool.close()
    assert not faults, "\n".join(["python -m tests.fuzz", *faults])
    assert sum(pool.done.values()) == sum(CASES.values())
