"""Run cases for some time, or so many, or one again; exit code 1 when any was at fault."""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

from .judge import KINDS, emptied, run_case
from .pool import SECONDS, Pool, cases


def main() -> int:
    asked = options()
    work = Path(asked.keep or tempfile.mkdtemp(prefix="bertcli-fuzz-")).resolve()
    os.environ["HF_HUB_OFFLINE"] = "1"
    if asked.case:
        return run_one(asked.case, work)
    counts = {kind: getattr(asked, f"{kind}s") for kind in KINDS}
    if not any(counts.values()):
        counts = dict.fromkeys(KINDS, float("inf"))
    until = time.monotonic() + 60 * asked.minutes if asked.minutes else float("inf")
    pool = Pool(work, asked.jobs, asked.seconds)
    for end in (signal.SIGINT, signal.SIGTERM):  # in the background the first is ignored
        signal.signal(end, signal.default_int_handler)
    print(f"seed {asked.seed}; faults are kept in {work}/faults", flush=True)
    start = time.monotonic()
    try:
        for case, fault in pool.run(cases(asked.seed, counts), until):
            if len(pool.faults[fault.name]) == 1:
                print(f"{fault.name}\n    python -m tests.fuzz --case {case}", flush=True)
    except KeyboardInterrupt:
        pass
    finally:
        pool.close()
    report(pool, time.monotonic() - start)
    if asked.json:
        Path(asked.json).write_text(json.dumps(pool.faults, indent=1))
    return int(bool(pool.faults))


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float)
    for kind in KINDS:
        parser.add_argument(f"--{kind}s", type=int, default=0, metavar="N", help="cases")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="that a case may take")
    parser.add_argument("--case", metavar="KIND:NUMBER", help="such as folder:12, here and now")
    parser.add_argument("--keep", metavar="DIR", help="where sound folders and faults are kept")
    parser.add_argument("--json", metavar="FILE", help="all faults")
    asked = parser.parse_args()
    if not (asked.case or asked.minutes or any(getattr(asked, f"{kind}s") for kind in KINDS)):
        parser.error("give --minutes, a number of cases, or --case")
    return asked


def run_one(case: str, work: Path) -> int:
    """Run a case in this process and show what is wrong with it."""
    pool = Pool(work, 0)
    fault = run_case(case, pool.sound, emptied(work / "case"))
    if fault is None:
        print(f"{case}: no fault")
        return 0
    print(fault.name, fault.command, fault.details, f"in {work}/case", sep="\n")
    return 1


def report(pool: Pool, seconds: float) -> None:
    """Print the faults by name, the most frequent ones first, and how many cases there were."""
    for name, faults in sorted(pool.faults.items(), key=lambda item: -len(item[1])):
        print(f"{len(faults):6} {name}\n       --case {faults[0][0]}: {faults[0][1].command}")
    ran = ", ".join(f"{many:,} {kind}s" for kind, many in sorted(pool.done.items()))
    wrong = sum(map(len, pool.faults.values()))
    print(f"{ran} in {seconds:.0f} s: {wrong} faults of {len(pool.faults)} kinds")


if __name__ == "__main__":
    sys.exit(main())
