"""Short names of fields: those of --format csv and flat."""
import os

TEXTS = ("model", "device", "phase", "kernel", "shape", "method", "draft")
# Name -> paths in a record, of which the first found counts. The test plots compares them with record_view.cpp.
FIELDS = {
    "model": "model.name recipe.effective.model.path",
    "device": "workload.device recipe.effective.run.device",
    "threads": "host.threads_used",
    "context": "workload.context_tokens workload.prompt_tokens recipe.effective.run.context",
    "phase": "workload.phase",
    "kernel": "workload.kernel",
    "shape": "workload.shape",
    "method": "workload.method recipe.effective.cache.kind",
    "draft": "workload.draft.name",
    "batch": "workload.batch recipe.effective.run.batch",
    "temperature": "workload.temperature",
    "gamma": "spec.mean_gamma spec.gamma",
    "tok_s": "throughput.decode_tok_s throughput.prefill_tok_s predicted.decode_tok_s",
    "tok_s_p50": "",  # by the timing, as the rest of this block
    "tok_s_sd": "",
    "ms_mean": "",
    "ms_sd": "",
    "ms_p50": "",
    "ms_p99": "",
    "samples": "",
    "steady": "steady",
    "speedup": "spec.speedup_measured predicted.speedup",
    "baseline_ratio": "baseline.ratio",
    "ci_low": "spec.speedup_ci95_low baseline.ci95_low",
    "ci_high": "spec.speedup_ci95_high baseline.ci95_high",
    "speedup_to_end": "spec.speedup_to_end",
    "speedup_end_to_end": "spec.speedup_end_to_end",
    "speedup_predicted": "spec.speedup_predicted",
    "pays_from_token": "spec.pays_from_new_tokens",
    "alpha": "spec.alpha acceptance.drafted.alpha workload.alpha_assumed",
    "alpha_se": "acceptance.drafted.alpha_stderr",
    "tested_alpha": "acceptance.tested.alpha",
    "tested_alpha_se": "acceptance.tested.alpha_stderr",
    "tokens_per_round": "spec.mean_tokens_per_round predicted.tokens_per_round",
    "accepted_frac": "spec.share_accepted",
    "draft_ms": "spec.draft_ms",
    "target_ms": "spec.target_ms predicted.verify_ms",
    "verify_ms": "spec.verify_ms",
    "rest_ms": "spec.rest_ms predicted.rest_ms",
    "round_ms": "spec.round_ms predicted.round_ms",
    "ttft_ms": "latency.ttft_ms",
    "tpot_ms": "latency.tpot_ms predicted.tpot_ms",
    "gb_s": "roofline.achieved_gbps",
    "read_frac": "roofline.frac_of_copy",
    "tflop_s": "roofline.achieved_tflops",
    "gemm_frac": "roofline.frac_of_matmul",
    "keys_frac": "attention.selected_keys_frac",
    "peak_bytes": "memory.cpu.peak",
    "read_gb_s": "limits.mem_read_gbps",
    "f32_gflop_s": "limits.f32_gflops",
    "gemm_f32_gflop_s": "limits.gemm_f32_gflops",
    "gemm_bf16_gflop_s": "limits.gemm_bf16_gflops",
}
OF_ALL = ("model", "device", "threads", "context")  # pig-eval adds its group quality, benchmarks the other fields
TIMINGS = ("decode_step", "round", "step", "switch", "prefill", "load")  # the first that a record has
TIMES = {"ms_mean": "mean", "ms_sd": "stddev", "ms_p50": "p50", "ms_p99": "p99", "samples": "n"}


def timing_fields(fields):
    timing = next((f"timing.{name}." for name in TIMINGS if f"timing.{name}.mean" in fields), "timing.none.")
    found = {name: fields.get(timing + key) for name, key in TIMES.items()}
    mean, median = found["ms_mean"], found["ms_p50"]
    speed = fields.get(f"throughput.{fields.get('workload.phase')}_tok_s")
    if speed is not None and mean and median:
        found["tok_s_p50"] = speed * mean / median
        if found["ms_sd"] is not None:
            found["tok_s_sd"] = speed * found["ms_sd"] / mean
    return found


def short_fields(fields):
    """The values of a record under their short names; `fields` has them by dotted path."""
    timed, found = timing_fields(fields), {}
    for name in OF_ALL if fields.get("tool") == "pig-eval" else FIELDS:
        kinds = str if name in TEXTS else (int, float)
        values = [fields.get(path) for path in FIELDS[name].split()
                  if not path.startswith("recipe.") or fields.get(path) not in (0, "auto")]
        value = next((v for v in values if isinstance(v, kinds)), timed.get(name))
        if value is not None:
            found[name] = os.path.basename(value.rstrip("/")) if name == "model" else value
    quality = {path.removeprefix("quality.").replace(".", "_"): value for path, value in fields.items()
               if path.startswith("quality.") and isinstance(value, (str, int, float))}
    return {**found, **quality}
