// pig-generate: reads prompts or a document and writes text, one or many sequences at once.
#include <algorithm>
#include <numeric>

#include "base/clock.h"
#include "base/parallel.h"
#include "cli/generate_output.h"
#include "cli/main_wrapper.h"
#include "cli/plan_text.h"
#include "decode/generate.h"
#include "decode/prompts.h"
#include "decode/state.h"

namespace {

using namespace tandem;

struct GenerateRecipe {
  recipe::Model model;
  recipe::Run run;
  recipe::Sampling sampling;
  recipe::Cache cache;
  recipe::Output output;

  template <class V>
  void fields(V& v) {
    v("model", model, "the model");
    v("run", run, "device, threads, seed, sizes");
    v("sampling", sampling, "how tokens are drawn and when text ends");
    v("cache", cache, "what attention reads");
    v("output", output, "where results go");
  }
};

const cli::ToolInfo kInfo{
    .name = "pig-generate",
    .purpose = "Generate text with a Llama-family model, from a prompt or a long document",
    .kind = "generate",
    .examples =
        {"pig-generate -m tiny-16m -p \"Once upon a time\" -n 40",
         "pig-generate -m tiny-16m -p \"Why is the sky blue?\" --chat",
         "pig-generate -m tiny-16m -f recipes/demo/lighthouse-logbook.txt \\\n"
         "    --questions recipes/demo/questions.txt --stop $'\\n' -n 32",
         "cat report.txt | pig-generate -r pig/tiny-16m -f - -n 300 --format jsonl > events.jsonl",
         "pig-generate -m synthetic:llama-3.2-1b --prompt-ids ids.json --dry-run"},
    .flags = {{.names = "-p,--prompt", .value = "TEXT", .text = "the prompt; follows the document of -f"},
              {.names = "-f,--file", .value = "FILE", .text = "a document to read first, - = standard input"},
              {.names = "--prompt-ids", .value = "FILE", .text = "JSON array of token ids, used as it is"},
              {.names = "--questions", .value = "FILE",
               .text = "one question a line about the document, which is read once"},
              {.names = "--prompts", .value = "FILE",
               .text = "JSONL batch: {\"prompt\"}, {\"ids\"} or {\"messages\"}"},
              {.names = "--chat", .value = "", .text = "write the prompt in the model's chat template"},
              {.names = "-n,--max-tokens", .value = "N", .text = "new tokens of a sequence, at most",
               .key = "sampling.max_tokens"},
              {.names = "--stop", .value = "TEXT", .text = "text that ends a sequence; repeatable",
               .key = "sampling.stop"}},
    .schema = recipe::schema_of<GenerateRecipe>,
    .formats = {"text", "jsonl"}};

decode::PromptSource prompt_source(const cli::Context& cx) {
  decode::PromptSource s;
  s.text = cx.value("prompt");
  const auto path = [&](const char* flag) {
    const auto v = cx.value(flag);
    return v ? std::optional<std::filesystem::path>(*v) : std::nullopt;
  };
  s.document = path("file");
  s.ids = path("prompt-ids");
  s.questions = path("questions");
  s.prompts = path("prompts");
  s.chat = cx.is_set("chat");
  for (const auto& p : {s.document, s.ids, s.questions, s.prompts})
    if (p == "-") cli::require_piped_stdin();
  return s;
}

/// Sizes of a run, from what its prompts need.
decode::EngineSpec engine_spec(const GenerateRecipe& r, const decode::ModelFiles& files,
                               const decode::PromptSet& prompts, size_t saved) {
  constexpr int kMaxAutoBatch = 32;
  const int64_t context = r.run.context > 0 ? r.run.context.value : files.config.max_context;
  int64_t longest = 0, own = 0;
  std::vector<int64_t> lengths;
  for (const auto& ids : prompts.sequences) {
    const auto n = static_cast<int64_t>(saved + ids.size());
    if (n > context || n > files.config.max_context)
      throw input_error("prompt", "has {} tokens, the context holds {}", n,
                        std::min<int64_t>(context, files.config.max_context))
          .hint(n > files.config.max_context
                    ? "shorten the prompt, or use a model with a longer context"
                    : "raise run.context, or leave it out");
    lengths.push_back(std::min(context, n + r.sampling.max_tokens));
    longest = std::max(longest, lengths.back());
  }
  if (lengths.empty()) lengths = {longest = context};
  const auto shared = static_cast<int64_t>(saved + prompts.shared);
  const int wanted = r.run.batch > 0 ? r.run.batch : kMaxAutoBatch;
  const int batch = std::min(wanted, static_cast<int>(lengths.size()));
  std::sort(lengths.rbegin(), lengths.rend());
  for (int i = 0; i < batch; ++i) own += lengths[static_cast<size_t>(i)] - shared;
  const bool prefix = shared > 0 || !r.output.state.empty();
  decode::EngineSpec spec;
  spec.compute = r.model.compute == recipe::Compute::f32 ? DType::f32 : DType::bf16;
  spec.prefill_chunk = static_cast<int>(r.run.prefill_chunk);
  spec.max_seqs = batch + (prefix ? 1 : 0);
  spec.max_tokens = static_cast<int>(longest);
  spec.total_tokens = shared + own;
  spec.caches = {r.cache};
  return spec;
}

/// Reads what all sequences share once: a saved state, and then the common start of the prompts.
struct Prefix {
  int slot = -1;
  std::vector<int32_t> tokens;
  double seconds = 0;
  int64_t prefilled = 0;
};

Prefix read_prefix(cli::Context& cx, decode::Engine& engine, const GenerateRecipe& r,
                   const decode::PromptSet& prompts, const decode::SavedState* saved) {
  Prefix p;
  const bool save = !r.output.state.empty();
  std::span<const int32_t> fresh;
  if (save && prompts.sequences.size() == 1) fresh = prompts.sequences[0];
  else if (!prompts.sequences.empty()) fresh = std::span(prompts.sequences[0]).first(prompts.shared);
  if (saved == nullptr && fresh.empty()) return p;
  const Stopwatch watch;
  if (saved != nullptr) {
    p.slot = decode::restore_state(*saved, engine, 0);
    p.tokens = saved->tokens;
  } else {
    p.slot = engine.cache().create();
  }
  if (!fresh.empty()) {
    cli::Progress progress(cx.terminal, "prefill", static_cast<double>(fresh.size()), "tok");
    const decode::SeqTokens part[] = {{p.slot, fresh, false}};
    engine.prefill(part, {}, [&](int64_t done) {
      progress.update(static_cast<double>(done));
      return cli::interrupted() == 0;
    });
    p.tokens.insert(p.tokens.end(), fresh.begin(), fresh.end());
  }
  p.prefilled = static_cast<int64_t>(fresh.size());
  p.seconds = watch.seconds();
  if (save) decode::save_state(r.output.state, engine, p.slot, p.tokens);
  return p;
}

decode::GenerateSpec generate_spec(const GenerateRecipe& r, const decode::Engine& engine) {
  decode::GenerateSpec g;
  const recipe::Sampling& s = r.sampling;
  g.rule = {.temperature = static_cast<float>(s.temperature), .top_k = s.top_k,
            .top_p = s.top_p, .min_p = s.min_p,
            .repetition_penalty = static_cast<float>(s.repetition_penalty)};
  g.seed = r.run.seed;
  g.max_tokens = s.max_tokens;
  g.max_context = engine.spec().max_tokens;
  g.stop_ids.assign(engine.config().eos_ids.begin(), engine.config().eos_ids.end());
  g.stops = s.stop;
  g.top_logprobs = r.output.top_logprobs;
  return g;
}

int run(cli::Context& cx) {
  const auto point = cx.load_point<GenerateRecipe>();
  const GenerateRecipe& r = point.recipe;
  const decode::PromptSource source = prompt_source(cx);
  if (source.empty() && r.model.state.empty() && !cx.dry_run())
    throw usage_error("prompt", "nothing to continue")
        .hint("give -p TEXT, -f FILE, --prompt-ids FILE, --questions FILE or --prompts FILE");

  const Stopwatch load;
  decode::ModelFiles files = decode::open_model(r.model.path.value, static_cast<uint64_t>(r.run.seed));
  std::optional<decode::SavedState> saved;
  const DType asked = r.model.compute == recipe::Compute::f32 ? DType::f32 : DType::bf16;
  if (!r.model.state.empty())
    saved = decode::open_state(r.model.state, files, ops::weight_dtype(asked));
  decode::PromptSet prompts;
  if (!source.empty()) prompts = decode::read_prompts(source, files, saved.has_value());
  else if (saved) prompts.sequences.emplace_back();  // the state itself is the prompt
  const decode::EngineSpec spec = engine_spec(r, files, prompts, saved ? saved->tokens.size() : 0);
  if (ops::weight_dtype(asked) != asked) cx.note(cli::compute_note(asked));

  const MemoryPlan plan = decode::Engine::plan(files, spec);
  const size_t limit = cli::host_limit(r.run.host_memory_limit);
  if (cx.dry_run()) {
    int64_t tokens = 0;
    for (const auto& ids : prompts.sequences) tokens += static_cast<int64_t>(ids.size());
    const cli::PlanView view{.files = files, .spec = spec, .plan = plan, .limit_bytes = limit,
                             .prompt_tokens = tokens > 0 ? tokens : spec.max_tokens,
                             .context_tokens = spec.max_tokens,
                             .sequences = std::max(1, static_cast<int>(prompts.sequences.size())),
                             .recipe_sha256 = point.record.value("sha256", "")};
    cx.out.write(cli::plan_text(view, bench::cached_ceilings(max_threads())));
    cx.out.flush();  // the plan first, then what is wrong with it
    plan.check_fits({}, limit);
    return 0;
  }
  plan.check_fits({}, limit);

  decode::Engine engine(std::move(files), spec);
  const double load_s = load.seconds();
  const Prefix prefix = read_prefix(cx, engine, r, prompts, saved ? &*saved : nullptr);
  std::vector<decode::Request> requests;
  const size_t skip = prefix.tokens.size() - (saved ? saved->tokens.size() : 0);
  for (const auto& ids : prompts.sequences)
    requests.push_back({.prefix_slot = prefix.slot, .prefix = prefix.tokens,
                        .tokens = {ids.begin() + static_cast<long>(skip), ids.end()}});
  if (r.sampling.max_tokens == 0) requests.clear();

  cli::GenerateOutput output(cx, r.output.path, prompts.labels, engine);
  decode::GenerateReport report =
      decode::generate(engine, requests, generate_spec(r, engine), output.events());
  report.prefill_s += prefix.seconds;
  report.prompt_tokens += prefix.prefilled;
  output.finish(report, load_s);
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return tandem::cli::main_wrapper(kInfo, argc, argv, run); }
