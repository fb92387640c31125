"""Compares the product with kube-scheduler's own code on problems that nobody has seen before (`make oracle`).

    make oracle                                        100 fresh problems per family, from today's seed on
    make oracle ARGS="fresh --seed 7 --count 1000 --family spread"
    make oracle ARGS="sequences --count 50"            pods decided one after the other, each judged beside those before it
    make oracle ARGS="recorded"                        the oracle against answers.jsonl.gz: it must say the same
    make oracle ARGS="answer FILE"                     kube-scheduler's answers to a file of problems, on stdout
    make oracle ARGS="record"                          writes answers.jsonl.gz anew, for another release

The oracle is the Go program under tests/oracle; it is built once into a cache folder outside the repository. Problems that
differ are kept in `--keep FOLDER`, one file each, with both answers.
"""

from __future__ import annotations

import argparse
import gzip
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import orjson

from multisched.model.decode import Decoder
from tests.conformance import sequences
from tests.conformance.answer import attempted
from tests.conformance.generate import FAMILIES, problem
from tests.conformance.slips import with_explicit_namespaces
from tests.conformance.vectors import ANSWERS_FILE, PROBLEMS_FILE, comparable, differences, read_lines

Json = dict[str, Any]

BUILD = Path(__file__).parent.parent / "oracle" / "build.sh"
BUILD_TIMEOUT_S = 1800
ANSWER_TIMEOUT_S = 600
BATCH = 500
"""Problems given to the oracle at once."""
SEQUENCES_AT_ONCE = 50
DIFFERENCES_SHOWN = 6
"""Lines per problem."""
DAY_S = 86_400


def built() -> Path:
    """The oracle's program, built if it has to be."""
    done = subprocess.run([str(BUILD)], stdout=subprocess.PIPE, text=True, check=True, timeout=BUILD_TIMEOUT_S)
    return Path(done.stdout.strip())


def ask(oracle: Path, problems: Sequence[Json]) -> list[Json]:
    """kube-scheduler's answers, in the order of the problems; what it means to answer where it slips (`slips.py`)."""
    text = b"\n".join(orjson.dumps(with_explicit_namespaces(one)) for one in problems)
    done = subprocess.run([str(oracle)], input=text, stdout=subprocess.PIPE, check=True, timeout=ANSWER_TIMEOUT_S)
    answers = [orjson.loads(line) for line in done.stdout.splitlines()]
    if [a["id"] for a in answers] != [p["id"] for p in problems]:
        raise RuntimeError("the oracle left out problems, or changed their order")
    return answers


def fresh(options: argparse.Namespace) -> bool:
    """Product against oracle; True if they agree on every problem."""
    oracle, decoder = built(), Decoder()
    print(f"seeds {options.seed} to {options.seed + options.count - 1}")
    is_same = True
    for family in options.family or FAMILIES:
        exact, shown = 0, 0
        for first in range(options.seed, options.seed + options.count, BATCH):
            seeds = range(first, min(first + BATCH, options.seed + options.count))
            problems = [problem(family, seed) for seed in seeds]
            for one, theirs in zip(problems, ask(oracle, problems), strict=True):
                ours = attempted(one, decoder, warm=options.warm)
                lines = differences(ours, theirs)
                exact += not lines
                if lines:
                    _keep(options.keep, one, ours, theirs)
                    shown += 1
                    if shown <= options.show:
                        print("\n".join(f"    {line}" for line in (one["id"], *lines[:DIFFERENCES_SHOWN])))
        print(f"{family:16} {exact:5}/{options.count:<5}", flush=True)
        is_same &= exact == options.count
    return is_same


def _keep(folder: Path | None, one: Json, ours: Json, theirs: Json) -> None:
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    text = orjson.dumps({"problem": one, "ours": ours, "theirs": theirs}, option=orjson.OPT_INDENT_2)
    (folder / f"{one['id']}.json").write_bytes(text)


def in_sequence(options: argparse.Namespace) -> bool:
    """Sequences of pods; True if kube-scheduler would have put each where ours did, or on a node as good."""
    oracle = built()
    print(f"seeds {options.seed} to {options.seed + options.count - 1}, {sequences.PODS} pods each")
    is_same = True
    for family in options.family or sequences.FAMILIES:
        exact = shown = total = 0
        for first in range(options.seed, options.seed + options.count, SEQUENCES_AT_ONCE):
            seeds = range(first, min(first + SEQUENCES_AT_ONCE, options.seed + options.count))
            found = [step for seed in seeds for step in sequences.steps(family, seed)]
            for step, theirs in zip(found, ask(oracle, [step.problem for step in found]), strict=True):
                lines = sequences.faults(step, theirs)
                exact, total, shown = exact + (not lines), total + 1, shown + bool(lines)
                if lines:
                    _keep(options.keep, step.problem, {"node": step.node, "message": step.message}, theirs)
                    if shown <= options.show:
                        print("\n".join(f"    {line}" for line in (step.problem["id"], *lines)))
        print(f"{family:16} {exact:5}/{total:<5}", flush=True)
        is_same &= exact == total
    return is_same


def recorded(options: argparse.Namespace) -> bool:
    """The oracle against the recorded answers. Scalar resources come in the order of a Go map, in both."""
    problems, answers = list(read_lines(options.problems)), {a["id"]: a for a in read_lines(options.responses)}
    found = _ask_all(built(), problems)
    by_family: Counter[str] = Counter()
    equal: Counter[str] = Counter()
    identical = 0
    for one, theirs in zip(problems, found, strict=True):
        known = answers[one["id"]]
        by_family[one["family"]] += 1
        equal[one["family"]] += comparable(known) == comparable(theirs)
        identical += known == theirs
    for family, count in by_family.items():
        print(f"{family:16} {equal[family]:5}/{count:<5}")
    print(f"{'all':16} {equal.total():5}/{by_family.total():<5} of which {identical} to the last byte")
    return equal == by_family


def answer_file(options: argparse.Namespace) -> bool:
    for one in _ask_all(built(), list(read_lines(options.file))):
        sys.stdout.buffer.write(orjson.dumps(one, option=orjson.OPT_SORT_KEYS) + b"\n")
    return True


def record(options: argparse.Namespace) -> bool:
    """Writes the answers file anew from the problems file."""
    answers = _ask_all(built(), list(read_lines(options.problems)))
    text = b"".join(orjson.dumps(one, option=orjson.OPT_SORT_KEYS) + b"\n" for one in answers)
    # The same answers give the same file: no time of writing inside.
    options.responses.write_bytes(gzip.compress(text, mtime=0))
    print(f"{len(answers)} answers written to {options.responses}")
    return True


def _ask_all(oracle: Path, problems: Sequence[Json]) -> list[Json]:
    batches = (problems[at : at + BATCH] for at in range(0, len(problems), BATCH))
    return [answer for batch in batches for answer in ask(oracle, batch)]


def parsed(arguments: Iterable[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    new = commands.add_parser("fresh", help="product against oracle on fresh problems (the default)")
    for target in (parser, new):
        target.add_argument("--family", action="append", choices=sorted(FAMILIES), help="only this one; repeatable")
        target.add_argument("--seed", type=int, default=int(time.time() // DAY_S) * 1000, help="the first seed")
        target.add_argument("--count", type=int, default=100, help="problems per family")
        target.add_argument("--show", type=int, default=3, help="differing problems to print per family")
        target.add_argument("--keep", type=Path, help="folder for differing problems")
        target.add_argument("--warm", action="store_true", help="the product answers from caches that saw changes")
    row = commands.add_parser("sequences", help="several pods one after the other, with families of their own")
    row.add_argument("--family", action="append", choices=sequences.FAMILIES, help="only this one; repeatable")
    row.add_argument("--seed", type=int, default=int(time.time() // DAY_S) * 1000, help="the first seed")
    row.add_argument("--count", type=int, default=50, help="sequences per family")
    row.add_argument("--show", type=int, default=3, help="differing decisions to print per family")
    row.add_argument("--keep", type=Path, help="folder for differing decisions")
    for name, text in (("recorded", "the oracle against recorded answers"), ("record", "writes the answers file anew")):
        command = commands.add_parser(name, help=text)
        command.add_argument("--problems", type=Path, default=PROBLEMS_FILE)
        command.add_argument("--answers", type=Path, default=ANSWERS_FILE)
    commands.add_parser("answer", help="the oracle's answers to a file of problems").add_argument("file", type=Path)
    return parser.parse_args(arguments if arguments is None else list(arguments))


COMMANDS: dict[str | None, Callable[[argparse.Namespace], bool]] = {
    None: fresh,
    "fresh": fresh,
    "sequences": in_sequence,
    "recorded": recorded,
    "record": record,
    "answer": answer_file,
}


def main() -> None:
    options = parsed()
    sys.exit(0 if COMMANDS[options.command](options) else 1)


if __name__ == "__main__":
    main()
