#include "tools/pig_eval.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "base/parallel.h"
#include "cli/plan_text.h"
#include "decode/fit/load_engine.h"
#include "io/file.h"
#include "model/spec/context.h"
#include "recipe/fields_of.h"
#include "tools/prompts/prompt_flags.h"
#include "tools/results/eval_results.h"

namespace tandem::tools {
namespace {

// Cases that run together, by default.
constexpr int kFewCases = 4, kManyCases = 16;

std::vector<recipe::Cache> caches_of(const std::vector<eval::NamedPolicy>& policies) {
  std::vector<recipe::Cache> caches;
  for (const eval::NamedPolicy& policy : policies) caches.push_back(policy.cache);
  return caches;
}

int longest_of(const std::vector<eval::Window>& windows) {
  size_t most = 0;
  for (const eval::Window& window : windows) most = std::max(most, window.ids.size());
  return static_cast<int>(most);
}

}  // namespace

PigEval::PigEval(cli::Context& cx, const cli::Point<Recipe>& point)
    : cx_(cx),
      point_(point),
      recipe_(point.recipe),
      policies_(recipe_.eval.all_policies()),
      sizer_(recipe_.model, recipe_.run, caches_of(policies_), cx),
      config_(sizer_.open_model().config) {
  for (const eval::NamedPolicy& policy : policies_) names_.push_back(policy.name);
  check_context();
  if (recipe_.eval.attention() && sizer_.device().kind == Device::Kind::cuda)
    throw make_error(ErrorKind::device, "eval.tasks",
                     "the task attention is supported only on the CPU")
        .hint("use --device cpu, or leave the task attention out");
  decode::check_offload(recipe_.model.offload, config_, sizer_.device());
  read_sets();
  read_own();
  if (cx.resume() && recipe_.output.path.empty())
    throw usage_error("--resume", "needs the log to continue, but output.path is not set")
        .hint("name the log of the earlier run with -o");
}

void PigEval::check_context() const {
  const int context = text_context();
  if (recipe_.eval.questions().empty()) return;
  for (const recipe::TokenCount length : recipe_.eval.lengths)
    if (length > context)
      throw recipe_error("eval.lengths", "is {} tokens, but the context of {} is only {}",
                         length.value, config_.name, context)
          .hint("lower eval.lengths, which count prompt and answer, or choose another model");
}

int PigEval::text_context() const { return model::context_of(recipe_.run, config_); }

void PigEval::open_log() {
  const auto& path = recipe_.output.path;
  const bool exists = cx_.resume() && std::filesystem::exists(path);
  if (exists)
    log_ = eval::read_log(path, *point_.record, recipe_.eval, names_,
                          [&](const io::Json& r) { return cx_.upgraded(r); });
  if (log_.whole_bytes == 0) log_.device = sizer_.device().name();
  check_answers();
  check_own();
  if (!log_.channels) check_thresholds_file();
  if (path.empty()) return;
  if (cx_.group() && cx_.resume())  // before rank 0 changes it
    cx_.group()->require_equal(
        "output.path", fmt::format("{} bytes of {} cases", log_.whole_bytes, log_.n_judged()));
  if (log_.n_repeated > 0)
    cx_.note(fmt::format("{} line{} of {} repeat{} an earlier one, which counts once",
                         log_.n_repeated, log_.n_repeated > 1 ? "s" : "", path.string(),
                         log_.n_repeated > 1 ? "" : "s"));
  if (exists && cx_.place().rank == 0) std::filesystem::resize_file(path, log_.whole_bytes);
  if (log_.whole_bytes > 0) {
    cx_.note(fmt::format("resuming after {} cases", log_.n_judged()));
  } else {
    // Of a run that was killed before the header was whole, an empty file is left.
    const auto mode = exists ? cli::FileMode::append : cli::FileMode::create;
    cli::ResultFile fresh(path, cx_.resume() ? mode : cx_.file_mode(), cx_.out);
    fresh.write(eval::header_line(*point_.record, log_.device));
    fresh.commit();
  }
  file_ = std::make_unique<cli::ResultFile>(path, cli::FileMode::append, cx_.out);
}

std::optional<eval::PolicyEngines> PigEval::load(const eval::PolicyEngines::SpecOf& spec_of,
                                                 int batch, const char* buffer,
                                                 size_t buffer_bytes) {
  const decode::ModelFiles files = sizer_.open_model();
  eval::PolicyEngines engines(sizer_, files, policies_, spec_of, batch);
  MemoryPlan plan = engines.plan();
  if (buffer != nullptr) plan.add(buffer, buffer_bytes);
  for (const eval::NamedPolicy& policy : policies_) {
    MemoryPlan rounds;
    eval::plan_correction(policy.spec, engines.first(), config_, rounds);
    for (const PlanItem& item : rounds.items())
      plan.add(policy.name + " " + item.name, item.bytes, item.device, item.lifetime);
  }
  if (cx_.dry_run()) {
    const decode::EngineSpec& spec = engines.first();
    cli::PlanView view{.files = files,
                       .spec = spec,
                       .plan = plan,
                       .limits = sizer_.limits(),
                       .context_tokens = spec.max_tokens,
                       .recipe_sha256 = point_.sha256,
                       .hosted_engines = engines.hosted(files)};
    view.add_reading(0, static_cast<size_t>(spec.max_tokens));
    cli::print_plan(cx_, view);
    return {};
  }
  decode::admit_plan(cx_, plan, sizer_.limits());
  engines.load(cx_);
  return engines;
}

int PigEval::print_plan() {
  judge();
  return 0;
}

int PigEval::run() {
  open_log();
  judge();
  EvalResults{recipe_.eval, policies_, log_, *point_.record}.print(cx_);
  return 0;
}

int PigEval::print_from(cli::Context& cx, const std::filesystem::path& file) {
  return print_eval_of(cx, file);
}

void PigEval::judge() {
  try {
    run_questions();
    if (!cli::is_interrupted()) run_own();
    if (!cli::is_interrupted()) run_sets();
    if (recipe_.eval.perplexity() && !cli::is_interrupted()) run_text();
    if (recipe_.eval.attention() && !cli::is_interrupted()) run_attention();
    if (recipe_.eval.calibrates() && !cli::is_interrupted()) calibrate();
  } catch (const Error& e) {
    // The cases in flight are lost; cases judged before them will be printed.
    if (e.kind() != ErrorKind::interrupted) throw;
  }
}

eval::PolicyEngines::SpecOf PigEval::question_spec(int group) const {
  const auto longest = std::ranges::max(recipe_.eval.lengths, {}, &recipe::TokenCount::value);
  return [this, group, longest = static_cast<int>(longest)](const auto& policies) {
    return eval::case_engine_spec(policies, sizer_.compute(),
                                  static_cast<int>(recipe_.run.prefill_chunk), longest, group,
                                  config_.vocab_size);
  };
}

/// Cases at once: as many as were asked for, or a row in every decode step for each core, within
/// most of the memory.
int PigEval::group_size(const decode::ModelFiles& files, int n_cases,
                        const std::function<eval::PolicyEngines::SpecOf(int)>& spec_of) const {
  if (recipe_.run.batch > 0) return recipe_.run.batch;
  decode::MemoryLimits room = sizer_.limits();
  room.host -= room.host / 4;
  room.gpu_bytes -= room.gpu_bytes / 4;
  // Of several ranks: as rank 0 has threads, and as the largest part of the model fits.
  ranks::Group* const ranks = sizer_.group().get();
  const int threads = ranks != nullptr ? ranks->agree(max_threads()) : max_threads();
  int group = std::min(n_cases, std::clamp(threads, kFewCases, kManyCases));
  const auto fits = [&](int cases) {
    const bool here = room.fits(
        eval::PolicyEngines(sizer_, files, policies_, spec_of(cases), cases).smallest_plan(files));
    return ranks != nullptr ? ranks->least_of(here ? 1 : 0) > 0 : here;
  };
  while (group > 1 && !fits(group)) --group;
  return group;
}

std::vector<eval::Correction> PigEval::corrections() const {
  std::vector<eval::Correction> all;
  for (const eval::NamedPolicy& policy : policies_) all.push_back(policy.spec);
  return all;
}

const text::Tokenizer& PigEval::tokenizer_of(const decode::ModelFiles& files) const {
  if (files.tokenizer != nullptr) return *files.tokenizer;
  throw input_error(files.name, "questions need a tokenizer, but the model has none");
}

void PigEval::run_questions() {
  using Key = std::tuple<eval::Task, int64_t, int>;
  const eval::Settings& s = recipe_.eval;
  std::set<Key> done;
  for (const eval::CaseRecord& r : log_.cases) done.insert({r.task, r.length, r.index});
  std::vector<Key> missing;
  for (const recipe::TokenCount length : s.lengths)
    for (const eval::Task task : s.questions())
      for (int i = 0; i < s.cases; ++i)
        if (const Key key{task, length.value, i}; !done.contains(key)) missing.push_back(key);
  if (missing.empty()) return;

  const decode::ModelFiles files = sizer_.open_model();
  if (!cx_.dry_run()) tokenizer_of(files);  // refused before the weights are loaded
  const int group = group_size(files, s.cases, [&](int n) { return question_spec(n); });
  const auto engines = load(question_spec(group), group);
  if (!engines) return;
  const eval::CaseGenerator generator(tokenizer_of(files), s.haystack,
                                      static_cast<uint64_t>(recipe_.run.seed));
  cli::Progress progress(cx_.terminal, "cases", static_cast<double>(missing.size()), "cases");
  for (size_t begin = 0, end = 0; begin < missing.size(); begin = end) {
    if (cli::is_interrupted()) return;
    const auto [task, length, first] = missing[begin];
    while (end < missing.size() && end - begin < static_cast<size_t>(group) &&
           std::get<0>(missing[end]) == task && std::get<1>(missing[end]) == length)
      ++end;
    std::vector<eval::Case> cases(end - begin);
    parallel_for(static_cast<int>(cases.size()), [&](int i) {
      const auto at = static_cast<size_t>(i);
      cases[at] = generator.make(task, static_cast<size_t>(length),
                                 static_cast<uint32_t>(std::get<2>(missing[begin + at])));
    });
    auto outcomes =
        eval::run_cases(engines->panel(), cases, {s.protocols, s.prose_scores(), corrections()});
    for (size_t i = 0; i < cases.size(); ++i) {
      log_.cases.push_back({task, length, std::get<2>(missing[begin + i]), std::move(outcomes[i])});
      if (file_) file_->write(eval::case_line(log_.cases.back(), names_));
    }
    progress.update(static_cast<double>(end));
  }
}

void PigEval::run_text() {
  if (log_.text) return;
  const decode::ModelFiles files = sizer_.open_model();
  const eval::Settings& s = recipe_.eval;
  const std::filesystem::path data = data_text(recipe_.data);
  std::vector<eval::Window> windows;
  int scored = s.scored;
  if (data.extension() == ".jsonl") {
    windows = eval::load_answers(data, files, text_context(),
                                 static_cast<uint64_t>(recipe_.run.seed), s.cases);
    scored = std::ranges::max(windows, {}, &eval::Window::scored).scored;
  } else {
    windows = eval::load_windows(data, files, text_context());
    if (scored > 0)
      windows = eval::longer_windows(std::move(windows), scored + 1, s.cases, "eval.scored");
  }
  const int longest = longest_of(windows);
  const auto spec_of = [&](const auto& policies) {
    return eval::text_engine_spec(policies, sizer_.compute(), longest, scored,
                                  static_cast<int>(recipe_.run.prefill_chunk));
  };
  const auto engines =
      load(spec_of, 1, "workspace/compared logits", eval::text_buffer_bytes(config_));
  if (!engines) return;
  size_t total = 0;
  for (const eval::Window& window : windows) total += window.ids.size();
  cli::Progress progress(cx_.terminal, "text", static_cast<double>(total), "tok");
  auto text = eval::measure_text(engines->panel(), windows, scored, [&](int64_t done) {
    return progress.go_on(static_cast<double>(done));
  });
  if (text.empty()) return;
  if (file_) file_->write(eval::text_line(text, names_));
  log_.text = std::move(text);
}

void PigEval::run_attention() {
  if (log_.attention) return;
  const eval::Settings& s = recipe_.eval;
  const auto windows = eval::longer_windows(
      eval::load_windows(data_text(recipe_.data), sizer_.open_model(), text_context()), s.rows,
      s.cases, "eval.rows");
  const int longest = longest_of(windows);
  const auto spec_of = [&](const auto& policies) {
    return eval::attention_engine_spec(policies, sizer_.compute(),
                                       static_cast<int>(recipe_.run.prefill_chunk), longest);
  };
  const auto engines = load(spec_of, 1, "workspace/compared attention",
                            eval::attention_buffer_bytes(config_, longest));
  if (!engines) return;
  // On the CPU, where no keys lie elsewhere.
  decode::Engine& engine = *engines->panel().members().front().engine;
  cli::Progress progress(cx_.terminal, "attention", static_cast<double>(windows.size()), "windows");
  auto attention = eval::measure_attention(engine, windows, s.rows, [&](int64_t done) {
    return progress.go_on(static_cast<double>(done));
  });
  if (attention.empty()) return;
  if (file_) file_->write(eval::attention_line(attention, names_));
  log_.attention = std::move(attention);
}

cli::FileMode PigEval::calibration_mode() const {
  // A log is continued, this file is not.
  return cx_.resume() ? cli::FileMode::create : cx_.file_mode();
}

void PigEval::check_thresholds_file() const {
  if (recipe_.eval.calibrates() && !cx_.dry_run())
    cli::check_new_file(recipe_.eval.neurons.path, calibration_mode());
}

std::optional<eval::MeasuredThresholds> PigEval::measure_channels() {
  const decode::ModelFiles files = sizer_.open_model();
  const auto windows = eval::load_windows(data_text(recipe_.data), files, text_context());
  decode::EngineSpec spec =
      sizer_.placed(eval::gates_engine_spec(sizer_.compute(), longest_of(windows)));
  const MemoryPlan plan = sizer_.save_memory(config_, [&](const decode::Savings& savings) {
    spec.savings = savings;
    MemoryPlan all = decode::Engine::plan(files, spec);
    eval::plan_thresholds(config_, spec, all);
    return all;
  });
  if (cx_.dry_run()) {
    cli::print_plan(cx_, cli::PlanView{.files = files,
                                       .spec = spec,
                                       .plan = plan,
                                       .limits = sizer_.limits(),
                                       .context_tokens = spec.max_tokens,
                                       .recipe_sha256 = point_.sha256});
    return {};
  }
  decode::admit_plan(cx_, plan, sizer_.limits());
  const auto engine = decode::load_engine(cx_, sizer_.open_model(), spec, plan);
  size_t total = 0;
  for (const eval::Window& window : windows) total += window.ids.size();
  cli::Progress progress(cx_.terminal, "channels", static_cast<double>(total), "tok");
  auto measured = eval::measure_thresholds(
      *engine, windows, recipe_.eval.neurons.keep,
      [&](int64_t done) { return progress.go_on(static_cast<double>(done)); });
  if (measured.thresholds.values.empty()) return {};
  return measured;
}

void PigEval::calibrate() {
  const auto& path = recipe_.eval.neurons.path;
  // The log has them first, so that no resumed run finds a file which nothing accounts for.
  if (!log_.channels) {
    auto measured = measure_channels();
    if (!measured) return;
    if (file_) file_->write(eval::channels_line(*measured));
    log_.channels = std::move(measured);
  }
  const std::string text = ffn::thresholds_text(log_.channels->thresholds);
  if (std::filesystem::exists(path) && io::read_own_output(path) == text)
    return;  // an earlier run's
  cli::ResultFile file(path, calibration_mode(), cx_.out);
  file.write(text);
  file.commit();
}

}  // namespace tandem::tools

template tandem::recipe::Field tandem::recipe::fields_of(tandem::tools::EvalRecipe&);
