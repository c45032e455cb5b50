"""Coverage-guided fuzzing of one target: ``python tests/fuzz/run_fuzz.py TARGET SECONDS [libFuzzer options]``.

Begins with the golden cases and what was found before (``tests/fuzz/found/TARGET``). An input that breaks a rule is
written below the folder for temporary files, whose path is printed; put it into ``found`` together with the mend.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

_ROOT = Path(__file__).resolve().parents[2]
_RSS_MIB, _SLOWEST_S, _LONGEST = 1024, 10, 16384
_INSTRUMENTED = [
    "otel_bridge.journal",
    "otel_bridge.translation",
    "otel_bridge.bridge.ledger.codec",
    "otel_bridge_collector",
]


def main(target: str, seconds: str, *options: str) -> None:
    """Fuzz; ends the process."""
    sys.path[:0] = [
        str(_ROOT / part) for part in ("tests", "collector", "exporters", ".")
    ]
    with atheris.instrument_imports(include=_INSTRUMENTED):
        from support.otlp import fuzz_targets
    work = Path(tempfile.mkdtemp(prefix=f"fuzz-{target}-"))
    corpus = work / "corpus"
    corpus.mkdir()
    for number, seed in enumerate(fuzz_targets.seeds(target)):
        (corpus / f"seed-{number}").write_bytes(seed)
    found = _ROOT / "tests" / "fuzz" / "found" / target
    more = [str(found)] if found.is_dir() else []
    arguments = [
        f"-max_total_time={seconds}", f"-rss_limit_mb={_RSS_MIB}", f"-timeout={_SLOWEST_S}", f"-max_len={_LONGEST}",
        f"-artifact_prefix={work}/", "-print_final_stats=1", *options, str(corpus), *more,
    ]  # fmt: skip
    atheris.Setup([sys.argv[0], *arguments], fuzz_targets.TARGETS[target])
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
