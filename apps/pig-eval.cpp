// pig-eval: judges cache policies against full attention, by long-context questions and perplexity.
#include <algorithm>
#include <set>
#include <tuple>

#include "base/parallel.h"
#include "bench/record.h"
#include "cli/main_wrapper.h"
#include "cli/plan_text.h"
#include "cli/search_path.h"
#include "eval/report.h"

namespace {

using namespace tandem;

struct ResultLog {
  std::filesystem::path path;

  template <class V>
  void fields(V& v) {
    v("path", path, "log of judged cases, one JSON line each; what --resume continues; empty = none");
  }
};

struct EvalRecipe {
  recipe::Model model;
  recipe::Run run;
  recipe::Data data;
  eval::Settings eval;
  ResultLog output;

  template <class V>
  void fields(V& v) {
    v("model", model, "the model");
    v("run", run, "device, threads, seed, sizes");
    v("data", data, "text of the perplexity task");
    v("eval", eval, "tasks, protocols and policies");
    v("output", output, "where cases are logged");
  }
  void check(recipe::Problems& p) const {
    if (!model.state.empty()) p.field("model.state", "pig-eval continues no saved state");
    if (output.path == "-") p.field("output.path", "output.path: a log of cases is a file, not -");
    if (run.batch > 1) p.field("run.batch", "pig-eval runs one case at a time");
  }
};

const cli::ToolInfo kInfo{
    .name = "pig-eval",
    .purpose = "Judge cache policies against full attention: long-context questions, perplexity, KL",
    .kind = "eval",
    .examples =
        {"pig-eval -r pig/eval-tasks-tiny-16m -o cases.jsonl",
         "pig-eval -r pig/eval-tasks-tiny-16m -o cases.jsonl --resume --format md",
         "pig-eval -m tiny-16m --task needle1 --task vt -s eval.lengths=[4096] -s eval.cases=20",
         "pig-eval -r pig/eval-ppl-tiny-16m --data report.txt -s run.context=8Ki"},
    .flags = {{.names = "--task",
               .value = "NAME",
               .text = "needle1, needle8, kv, vt, cwe or perplexity; repeatable",
               .key = "eval.tasks"},
              {.names = "--haystack", .value = "FILE", .text = "text to hide needles in",
               .key = "eval.haystack"},
              {.names = "--data", .value = "FILE", .text = "text of the perplexity task",
               .key = "data.path"}},
    .schema = recipe::schema_of<EvalRecipe>,
    .formats = {"text", "md", "jsonl"},
    .resumes = true};

using Point = cli::Point<EvalRecipe>;

/// A run in progress.
struct Evaluation {
  cli::Context& cx;
  const Point& point;
  const EvalRecipe& recipe = point.recipe;
  std::vector<eval::NamedPolicy> policies = recipe.eval.all_policies();
  std::vector<std::string> names = {};
  eval::CaseLog log = {};
  std::unique_ptr<cli::ResultFile> file = {};

  void write(const std::string& line) {
    if (file) file->write(line);
  }
  decode::ModelFiles open() const {
    return decode::open_model(recipe.model.path.value, static_cast<uint64_t>(recipe.run.seed));
  }
  DType compute() const {
    return recipe.model.compute == recipe::Compute::f32 ? DType::f32 : DType::bf16;
  }
};

void check_context(const EvalRecipe& r, const model::ModelConfig& config) {
  const int64_t limit = config.max_context;
  const int64_t context = r.run.context > 0 ? r.run.context.value : limit;
  if (context > limit)
    throw recipe_error("run.context", "{} tokens, but {} was made for {}", context, config.name, limit)
        .hint("lower run.context, or choose a model with a longer context");
  if (r.eval.questions().empty()) return;
  for (const recipe::TokenCount length : r.eval.lengths)
    if (length > context)
      throw recipe_error("eval.lengths", "{} tokens, but the context of {} is {}", length.value,
                         config.name, context)
          .hint("lower eval.lengths (prompt and answer together), or choose another model");
}

decode::EngineSpec question_spec(const Evaluation& e) {
  const auto longest = std::ranges::max(e.recipe.eval.lengths, {}, &recipe::TokenCount::value);
  return eval::case_engine_spec(e.policies, e.compute(), static_cast<int>(e.recipe.run.prefill_chunk),
                                static_cast<int>(longest));
}

int text_context(const EvalRecipe& r, const model::ModelConfig& config) {
  return r.run.context > 0 ? static_cast<int>(r.run.context) : config.max_context;
}

/// Engine within the memory that may be used; with --dry-run prints the plan and returns null.
std::unique_ptr<decode::Engine> load(Evaluation& e, decode::ModelFiles files,
                                     const decode::EngineSpec& spec, size_t buffer_bytes) {
  MemoryPlan plan = decode::Engine::plan(files, spec);
  plan.add("workspace/compared logits", buffer_bytes);
  const size_t limit = cli::host_limit(e.recipe.run.host_memory_limit);
  if (e.cx.dry_run()) {
    const cli::PlanView view{.files = files, .spec = spec, .plan = plan, .limit_bytes = limit,
                             .prompt_tokens = spec.max_tokens, .context_tokens = spec.max_tokens,
                             .recipe_sha256 = e.point.record.value("sha256", "")};
    e.cx.out.write(cli::plan_text(view, bench::cached_ceilings(max_threads())));
  }
  plan.check_fits({}, limit);
  if (e.cx.dry_run()) return nullptr;
  return std::make_unique<decode::Engine>(std::move(files), spec);
}

void run_questions(Evaluation& e) {
  using Key = std::tuple<eval::Task, int64_t, int>;
  const eval::Settings& s = e.recipe.eval;
  std::set<Key> done;
  for (const eval::CaseRecord& record : e.log.cases)
    done.insert({record.task, record.length, record.index});
  std::vector<Key> todo;
  for (const recipe::TokenCount length : s.lengths)
    for (const eval::Task task : s.questions())
      for (int i = 0; i < s.cases; ++i)
        if (const Key key{task, length.value, i}; !done.contains(key)) todo.push_back(key);
  if (todo.empty()) return;

  decode::ModelFiles files = e.open();
  if (files.tokenizer == nullptr)
    throw input_error(files.name, "the model has no tokenizer, which questions need");
  const eval::CaseGenerator generator(*files.tokenizer, s.haystack,
                                      static_cast<uint64_t>(e.recipe.run.seed));
  const auto engine = load(e, std::move(files), question_spec(e), 0);
  if (!engine) return;
  cli::Progress progress(e.cx.terminal, "cases", static_cast<double>(todo.size()), "cases");
  double n_done = 0;
  for (const auto& [task, length, index] : todo) {
    if (cli::interrupted() != 0) return;
    progress.update(n_done++);
    const eval::Case c = generator.make(task, static_cast<size_t>(length), static_cast<uint32_t>(index));
    e.log.cases.push_back(
        {task, length, index, eval::run_case(*engine, c, {s.protocols, s.scores})});
    e.write(eval::case_line(e.log.cases.back(), e.names));
  }
}

std::filesystem::path demo_text() {
  for (const auto& folder : cli::recipe_folders())
    if (const auto path = folder / "demo/lighthouse-logbook.txt"; std::filesystem::exists(path))
      return path;
  throw input_error("data.path", "the built-in text is not installed").hint("name a text with --data");
}

void run_text(Evaluation& e) {
  if (e.log.text) return;
  const auto& path = e.recipe.data.path;
  decode::ModelFiles files = e.open();
  const int context = text_context(e.recipe, files.config);
  const auto windows = eval::load_windows(path.empty() ? demo_text() : path, files, context);
  const size_t buffer = eval::text_buffer_bytes(files.config);
  const auto engine =
      load(e, std::move(files), eval::text_engine_spec(e.policies, e.compute(), context), buffer);
  if (!engine) return;
  size_t total = 0;
  for (const eval::Ids& window : windows) total += window.size();
  cli::Progress progress(e.cx.terminal, "text", static_cast<double>(total), "tok");
  auto text = eval::measure_text(*engine, windows, [&](int64_t done) {
    progress.update(static_cast<double>(done));
    return cli::interrupted() == 0;
  });
  if (text.empty()) return;
  e.write(eval::text_line(text, e.names));
  e.log.text = std::move(text);
}

void print_records(Evaluation& e, const std::vector<eval::ScoreRow>& rows) {
  std::vector<io::Json> groups;
  for (const eval::ScoreRow& row : rows) groups.push_back(eval::score_json(row, e.names));
  for (size_t i = 0; e.log.text && i < e.log.text->size(); ++i) {
    groups.push_back(eval::quality_json((*e.log.text)[i], i == 0));
    groups.back().update({{"task", "perplexity"}, {"policy", e.names[i]}});
  }
  for (const io::Json& group : groups) {
    bench::Record record(kInfo.name);
    record.group("recipe") = e.point.record;
    record.group("quality") = group;
    if (cli::interrupted() != 0) record.group("status") = "partial";
    e.cx.out.write(record.line());
  }
}

void print_tables(Evaluation& e, const std::vector<eval::ScoreRow>& rows,
                  const model::ModelConfig& config) {
  const auto format = e.cx.format() == "md" ? io::TableFormat::markdown : io::TableFormat::text;
  std::vector<std::vector<double>> keys_read;
  for (const recipe::TokenCount length : e.recipe.eval.lengths) {
    keys_read.emplace_back();
    for (const eval::NamedPolicy& policy : e.policies)
      keys_read.back().push_back(
          eval::keys_read_share(policy.cache, config, static_cast<int>(length)));
  }
  if (!rows.empty()) e.cx.out.write(eval::score_table(rows, e.recipe.eval, keys_read).render(format));
  if (!rows.empty() && e.log.text) e.cx.out.write("\n");
  if (e.log.text) e.cx.out.write(eval::text_table(*e.log.text, e.names).render(format));
}

/// Opens the log: a new one with its header, or an old one cut back to its last whole line.
void open_log(Evaluation& e) {
  const auto& path = e.recipe.output.path;
  if (path.empty()) return;
  if (e.cx.resume() && std::filesystem::exists(path)) {
    e.log = eval::read_log(path, e.point.record, e.names);
    std::filesystem::resize_file(path, e.log.whole_bytes);
    e.cx.note(fmt::format("resuming after {} cases", e.log.cases.size()));
  } else {
    const auto mode = e.cx.resume() ? cli::FileMode::create : e.cx.file_mode();
    cli::ResultFile fresh(path, mode, e.cx.out);
    fresh.write(eval::header_line(e.point.record));
    fresh.commit();
  }
  e.file = std::make_unique<cli::ResultFile>(path, cli::FileMode::append, e.cx.out);
}

int run(cli::Context& cx) {
  const Point point = cx.load_point<EvalRecipe>();
  Evaluation e{.cx = cx, .point = point};
  for (const eval::NamedPolicy& policy : e.policies) e.names.push_back(policy.name);
  const model::ModelConfig config = e.open().config;
  check_context(e.recipe, config);
  if (cx.resume() && e.recipe.output.path.empty())
    throw usage_error("--resume", "continues a log, but output.path is not set")
        .hint("name the log of the earlier run with -o");
  if (ops::weight_dtype(e.compute()) != e.compute()) cx.note(cli::compute_note(e.compute()));
  if (!cx.dry_run()) open_log(e);
  run_questions(e);
  if (e.recipe.eval.perplexity() && cli::interrupted() == 0) run_text(e);
  if (cx.dry_run()) return 0;
  const auto rows = eval::summarize(e.recipe.eval, e.log.cases);
  if (cx.format() == "jsonl") print_records(e, rows);
  else print_tables(e, rows, config);
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return tandem::cli::main_wrapper(kInfo, argc, argv, run); }
