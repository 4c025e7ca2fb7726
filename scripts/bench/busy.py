#!/usr/bin/env python3
"""Times decode and prefill on a quiet machine and next to busy processes, at default threads and at one
thread in turn. busy.sh starts it, with the peers that it has installed."""
import argparse
import collections
import datetime
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from peer_common import SHAPES

HERE = pathlib.Path(__file__).resolve().parent
PROMPT = {"tiny-16m": 512, "smollm2-135m": 512, "llama-3.2-1b": 256}  # tokens; decode goes on from there
PHASES = ("prefill", "decode")
# Busy processes and their niceness.
LOADS = {"quiet": (0, 0), "1": (1, 0), "2": (2, 0), "1-nice": (1, 19), "2-nice": (2, 19)}
MOST_OTHERS = 0.2  # cores that other programs may use
PEERS = {"transformers": "peer_transformers.py", "llama.cpp": "peer_llama_cpp.py"}


def fail(status, text):
    print(f"busy.sh: error: {text}", file=sys.stderr)
    sys.exit(status)


class BusyProcesses:
    """Processes that compute and touch no memory, from entry to exit; they also end with this one."""

    LOOP = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n for _ in range(10**5): pass"

    def __init__(self, n, nice):
        self.command, self.n, self.running = ["nice", "-n", str(nice), sys.executable, "-c", self.LOOP], n, []

    def __enter__(self):
        for _ in range(self.n):
            self.running.append(subprocess.Popen(self.command, stdin=subprocess.DEVNULL))
        if self.n:
            time.sleep(0.3)  # until they compute
        return self

    def __exit__(self, *_):
        for process in self.running:
            process.kill()
            process.wait()


def cores_in_use(seconds=0.5):
    """Mean number of cores that run anything at all now."""
    def ticks():
        fields = [int(x) for x in pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        return sum(fields) - fields[3] - fields[4]  # all but idle and waiting for disks
    before = ticks()
    time.sleep(seconds)
    return (ticks() - before) / os.sysconf("SC_CLK_TCK") / seconds


class Tandem:
    """pig-bench of one build."""

    def __init__(self, name, build, shape, models, seconds):
        self.name, self.version, self.seconds, self.prompt = name, None, seconds, PROMPT[shape]
        self.tool = pathlib.Path(build) / "bin/pig-bench"
        if not self.tool.is_file():
            fail(4, f"{self.tool}: no such program; scripts/quickstart.sh builds it, or name a build folder "
                    "with --build")
        self.model, self.reads = shape, []
        if shape != "tiny-16m":  # the config.json that the peers build from, as older builds know it too
            folder = models / shape
            folder.mkdir(parents=True, exist_ok=True)
            config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16",
                      "hidden_act": "silu", "bos_token_id": 0, "eos_token_id": 0, **SHAPES[shape]}
            (folder / "config.json").write_text(json.dumps(config))
            self.model = f"synthetic:{folder}"

    def records(self, threads, phases, seconds, environment=None):
        command = [str(self.tool), "-m", self.model, "--device", "cpu", "-t", str(threads), "--no-progress",
                   "-q", "--format", "jsonl", "-s", "bench.random_kv=true", "-s", "bench.min_runs=1",
                   "-s", f"bench.min_time={seconds}s", "-s", f"bench.max_time={max(seconds, 1e-3)}s",
                   "-s", f"run.context={self.prompt}"]
        command += [word for phase in phases for word in ("--phase", phase)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode:
            fail(1, f"{' '.join(command)}: exit status {done.returncode}\n{done.stderr}")
        return [json.loads(line) for line in done.stdout.splitlines()]

    def measure(self, threads, limits=False):
        """tokens/s of each phase, from the mean and the median step.
        limits   measures memory's read rate first, since rates of a shared machine drift within minutes"""
        rates = {}
        with tempfile.TemporaryDirectory() as empty:
            environment = {**os.environ, "XDG_CACHE_HOME": empty} if limits else None
            records = self.records(0 if threads is None else threads, PHASES, self.seconds, environment)
        if limits:
            self.reads.append(records[0]["host"]["mem_read_gbps"])
        for r in records:
            phase = r["workload"]["phase"]
            timing = r["timing"]["prefill" if phase == "prefill" else "decode_step"]
            tokens = self.prompt if phase == "prefill" else 1
            rates[phase] = 1e3 * tokens / timing["mean"], 1e3 * tokens / timing["p50"]
        return rates


class Peer:
    """A peer script that waits for requests; its model is written once and kept."""

    def __init__(self, name, shape, models, seconds, threads):
        self.name, self.seconds, self.prompt, self.default_threads = name, seconds, PROMPT[shape], threads
        python = pathlib.Path(os.environ["TANDEM_PEERS"]) / "bin/python"
        if not python.is_file():
            fail(4, f"TANDEM_PEERS: {python}: no such file; expected a virtual environment with torch, "
                    "transformers, gguf and llama-cpp-python")
        script = [str(python), str(HERE / PEERS[name])]
        folder = models / shape
        folder.mkdir(parents=True, exist_ok=True)
        if name == "transformers":
            saved = folder / "checkpoint"
            if not (saved / "config.json").is_file():
                print(f"== {name}: writing {shape} into {saved}", file=sys.stderr)
                subprocess.run([*script, "--shape", shape, "--save", str(saved), "--prefill", "--context"],
                               check=True)
            script += ["--load", str(saved)]
        else:
            script += ["--shape", shape, "--gguf", str(folder / "model.gguf"), "--prefill", str(self.prompt),
                       "--context", str(self.prompt)]
        environment = {**os.environ, "TRANSFORMERS_VERBOSITY": "error", "PYTHONWARNINGS": "ignore"}
        self.process = subprocess.Popen([*script, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, env=environment)
        self.facts = self.answer()
        self.version = self.facts["version"]

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            fail(1, f"{self.name}: ended with status {self.process.wait()}, see above; --peers or --no-peers "
                    "leaves it out")
        return json.loads(line)

    def measure(self, threads, limits=False):
        rates = {}
        for phase in PHASES:
            request = {"phase": phase, "tokens": self.prompt, "threads": threads or self.default_threads,
                       "seconds": self.seconds}
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            times = self.answer()
            tokens = self.prompt if phase == "prefill" else 1
            rates[phase] = tokens / statistics.mean(times), tokens / statistics.median(times)
        return rates

    def close(self):
        self.process.kill()
        self.process.wait()


def machine_of(record):
    """What every record says about machine and build; `record` is pig-bench's."""
    host = record["host"]
    return {"cpu": host["cpu_model"], "cores": host["cores"], "isa": record["cpu_isa"],
            "kernel": host["kernel"], "read_gbps": host["mem_read_gbps"]}


def commit_of(record):
    return record["git_commit"] + ("-dirty" if record["git_dirty"] else "")


def limits_in_turn(contender, load, threads):
    return contender.name == "tandem" and load == "quiet" and threads is None


def measure_shape(shape, args, models, write):
    contenders = [Tandem("tandem", args.build, shape, models, args.seconds)]
    if args.baseline:
        contenders.append(Tandem("baseline", args.baseline, shape, models, args.seconds))
    # The limits are measured here where they are not known, before any load.
    firsts = [c.records(0, ["decode"], 0)[0] for c in contenders]
    for contender, first in zip(contenders, firsts):
        contender.version = commit_of(first)
    machine, threads = machine_of(firsts[0]), firsts[0]["host"]["threads_used"]
    step_bytes = firsts[0]["roofline"]["bytes_per_step"]
    peers = []
    try:
        for name in args.peers:
            peers.append(Peer(name, shape, models, args.seconds, threads))
        contenders += peers
        for load in args.loads:
            n, nice = LOADS[load]
            others = cores_in_use()
            if others > MOST_OTHERS:
                print(f"busy.sh: warning: other programs use {others:.1f} cores", file=sys.stderr)
            with BusyProcesses(n, nice):
                for repeat in range(args.repeats):
                    rates = {}
                    turn = [(c, t) for c in contenders for t in (None, 1)]
                    for contender, wanted in turn if repeat % 2 == 0 else reversed(turn):
                        rates[contender, wanted] = contender.measure(wanted, limits_in_turn(contender, load, wanted))
                    # Each turn is written at once: a run that is stopped keeps those before.
                    for contender, wanted in turn:
                        for phase in PHASES:
                            mean, p50 = rates[contender, wanted][phase]
                            write({"tool": "busy.sh",
                                   "time_utc": f"{datetime.datetime.now(datetime.timezone.utc):%FT%TZ}",
                                   **machine, "other_cores": round(others, 2), "load": load, "busy_processes": n,
                                   "nice": nice, "program": contender.name, "version": contender.version,
                                   "shape": shape, "dtype": "bf16", "phase": phase, "tokens": PROMPT[shape],
                                   "threads": threads if wanted is None else wanted,
                                   "threads_setting": "default" if wanted is None else "1",
                                   **({"step_bytes": step_bytes} if phase == "decode" else {}),
                                   **({"read_gbps_in_turn": contender.reads[-1:]}
                                      if limits_in_turn(contender, load, wanted) else {}),
                                   "tok_s": [round(mean, 3)], "tok_s_p50": [round(p50, 3)]})
    finally:
        for peer in peers:
            peer.close()


def range_text(values, form):
    text = format(statistics.median(values), form)
    return text if len(values) < 2 else f"{text} ({min(values):{form}} to {max(values):{form}})"


def table(records):
    """Rows of text: each shape, phase, load and program with the medians at default threads and at one, and
    the median of their ratios in turn. Records of one cell from several runs count as one."""
    cells = collections.defaultdict(lambda: {"default": [], "1": [], "reads": [], "others": 0})
    for r in records:
        key = r["shape"], r["phase"], r["load"], r["program"], r["version"]
        cells[key][r["threads_setting"]] += r["tok_s"]
        cells[key]["reads"] += r.get("read_gbps_in_turn", [])
        cells[key]["record"] = r
        cells[key]["others"] = max(cells[key]["others"], r["other_cores"])
    rows = [("shape", "phase", "load", "program", "default, tok/s", "-t 1, tok/s", "default / -t 1", "% of read")]
    for (shape, phase, load, program, version), cell in sorted(
            cells.items(), key=lambda item: (list(SHAPES).index(item[0][0]), PHASES.index(item[0][1]),
                                             list(LOADS).index(item[0][2]))):
        both = [a / b for a, b in zip(cell["default"], cell["1"])]
        share = ""
        if phase == "decode":
            limits = cell["reads"] or [cell["record"]["read_gbps"]] * len(cell["default"])
            shares = [rate * cell["record"]["step_bytes"] * 1e-9 / limit
                      for rate, limit in zip(cell["default"], limits)]
            share = f"{100 * statistics.median(shares):.0f}"
            if statistics.median(shares) > 1:
                share = "cache"  # a share of memory's rate says nothing of data that lie in a cache
        marked = load + ("*" if cell["others"] > MOST_OTHERS else "")
        rows.append((shape, phase, marked, f"{program} {version}", range_text(cell["default"], ".4g"),
                     range_text(cell["1"], ".4g"), range_text(both, ".2f") if both else "", share))
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip() for row in rows]
    if any(row[2].endswith("*") for row in rows):
        lines += ["", f"*  other programs used more than {MOST_OTHERS} cores when this began: measure it again"]
    return lines


def names(known):
    def parse(text):
        chosen = text.split(",") if text else []
        for name in chosen:
            if name not in known:
                raise argparse.ArgumentTypeError(f"'{name}': expected some of {','.join(known)}")
        return chosen
    return parse


def main():
    parser = argparse.ArgumentParser(
        prog="busy.sh", description="Times decode and prefill on a quiet machine and next to busy processes, at "
        "default threads and at one thread in turn.",
        epilog="Exit status: 0, 1 a program failed, 2 command line, 4 a file is missing or exists.")
    parser.add_argument("--shapes", type=names(PROMPT), metavar="LIST",
                        help=f"some of {','.join(PROMPT)} [default all]")
    parser.add_argument("--loads", type=names(LOADS), metavar="LIST",
                        help=f"some of {','.join(LOADS)}: busy processes, at normal priority or nice 19 [default all]")
    parser.add_argument("--build", metavar="DIR", default=str(HERE.parents[1] / "build"),
                        help="build folder of tandem [default build]")
    parser.add_argument("--baseline", metavar="DIR", help="another build folder, measured in turn")
    parser.add_argument("--peers", type=names(PEERS), default=list(PEERS), metavar="LIST",
                        help=f"some of {','.join(PEERS)} [default both]")
    parser.add_argument("--no-peers", dest="peers", action="store_const", const=[], help="tandem only")
    parser.add_argument("--repeats", type=int, help="turns of all programs [default 5]")
    parser.add_argument("--seconds", type=float, help="measured time of a phase in a turn [default 1]")
    parser.add_argument("--quick", action="store_true",
                        help="defaults: --shapes tiny-16m,smollm2-135m --loads quiet,1 --repeats 3 --seconds 0.4")
    parser.add_argument("-o", "--output", metavar="FILE",
                        help="records, one per program, phase, load, thread count and turn")
    parser.add_argument("--append", action="store_true", help="add to FILE")
    parser.add_argument("--from", dest="source", metavar="FILE", help="print the table of these records only")
    args = parser.parse_args()
    quick, full = (["tiny-16m", "smollm2-135m"], ["quiet", "1"], 3, 0.4), (list(PROMPT), list(LOADS), 5, 1)
    for name, default in zip(("shapes", "loads", "repeats", "seconds"), quick if args.quick else full):
        if getattr(args, name) is None:
            setattr(args, name, default)
    if args.repeats < 1 or args.seconds <= 0:
        parser.error("--repeats and --seconds: expected numbers above 0")
    if args.source:
        try:
            records = [json.loads(line) for line in open(args.source)]
            print("\n".join(table(records)))
        except (OSError, ValueError, KeyError, TypeError) as error:
            fail(4, f"{args.source}: expected records of busy.sh: {type(error).__name__}: {error}")
        return
    if args.output and not args.append and os.path.exists(args.output):
        fail(4, f"{args.output} exists; --append adds to it")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda n, _: sys.exit(128 + n))  # unwinds, which ends the processes

    records = []

    def write(record):
        records.append(record)
        if args.output:
            with open(args.output, "a") as out:
                out.write(json.dumps(record) + "\n")

    with tempfile.TemporaryDirectory() as scratch:
        models = pathlib.Path(os.environ["TANDEM_PEERS"]) / "models" if args.peers else pathlib.Path(scratch)
        for shape in args.shapes:
            measure_shape(shape, args, models, write)
    print("\n".join(table(records)))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
