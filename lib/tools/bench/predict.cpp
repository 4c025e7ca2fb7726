#include "tools/bench/bench.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/convert.h"
#include "bench/record.h"
#include "bench/speculation/measured_report.h"
#include "decode/model_files.h"
#include "speculate/plan/prediction.h"
#include "tensor/memory_plan.h"

// Predictions without measurements: bench.predict=only.
namespace tandem::tools {
namespace {

using bench::Json;
using Point = cli::Point<BenchRecipe>;

DType dtype_of(const BenchRecipe& r) {
  return r.model.compute == recipe::Compute::f32 ? DType::f32 : DType::bf16;
}

/// A draft at a point, before anything is calculated.
struct Case {
  const Point& point;
  const speculate::NamedDraft& draft;
  model::ModelConfig config;
  speculate::ModelCosts target;
  speculate::PredictionSpec spec;

  const BenchRecipe& recipe() const { return point.recipe; }
};

/// errors   kind input: the target; kind recipe: a context beyond its own
/// gamma    0: the best one
Case case_of(const Point& point, const speculate::NamedDraft& draft, int gamma) {
  const BenchRecipe& r = point.recipe;
  if (!draft.tree.empty())
    throw recipe_error("bench.drafts",
                       "'{}' proposes trees, which need measured times for a prediction",
                       draft.name)
        .hint("measure them, or use sequoia-tree-search with a timing table");
  if (recipe::is_quantized(draft.weights))
    throw recipe_error("bench.drafts",
                       "'{}' has quantized weights, which the roofline does not support",
                       draft.name)
        .hint("leave weights out, or measure it");
  Case c{.point = point,
         .draft = draft,
         .config = decode::open_config(r.model.path),
         .target = {},
         .spec = {}};
  c.target = speculate::costs_of(c.config, dtype_of(r));
  const int64_t longest = r.run.context.value + r.bench.n_new();
  if (c.config.trained && longest > c.config.max_context)
    throw recipe_error("run.context",
                       "is {} tokens with {} new tokens, but the model supports only {}",
                       r.run.context.value, r.bench.n_new(), c.config.max_context)
        .hint("lower run.context");
  c.spec = {.work = {r.run.batch, static_cast<double>(r.run.context.value)},
            .gamma = gamma,
            .most_gamma = r.spec.max_gamma,
            .speedup = r.bench.speedup,
            .new_tokens = r.bench.n_new(),
            .longest = std::max(c.config.max_context, static_cast<int>(longest)),
            .dtype = dtype_of(r)};
  return c;
}

/// Whether the batch has room, as far as that is known.
bool fits(const Case& c, const speculate::Prediction& p) {
  return !p.most_sequences || *p.most_sequences >= c.spec.work.batch;
}

/// Names a record. Of one gamma the point says which.
std::string phase_of(const Point& point, const speculate::NamedDraft& draft, int gamma) {
  const recipe::AutoCounts& asked = point.recipe.spec.gamma;
  const bool is_one = asked.values.size() + (asked.has_auto ? 1 : 0) <= 1 || gamma == 0;
  return "predict " + draft.name + (is_one ? "" : fmt::format(" gamma {}", gamma));
}

bench::Record record_of(const cli::Context& cx, const Point& point,
                        const speculate::NamedDraft& draft, int gamma) {
  const BenchRecipe& r = point.recipe;
  bench::Record record = named(bench::Record(cx.info.name), point);
  record.group("workload") = {{"phase", phase_of(point, draft, gamma)},
                              {"batch", r.run.batch},
                              {"context_tokens", r.run.context.value},
                              {"new_tokens", r.bench.n_new()},
                              {"draft", speculate::draft_json(draft)}};
  return record;
}

bench::Record record_of(const cli::Context& cx, const Case& c, const speculate::Prediction& p) {
  bench::Record record = record_of(cx, c.point, c.draft, c.spec.gamma);
  record.group("model") = {{"name", c.config.name}, {"dtype", dtype_name(c.spec.dtype)}};
  if (c.draft.kind == speculate::DraftKind::model)
    record.group("model")["draft"] = c.draft.path.value;
  const speculate::HardwareSection& hardware = c.recipe().bench.hardware;
  const speculate::MachineRates rates = hardware.rates();
  Json& machine = record.group("workload")["hardware"];
  machine = {{"gpus", rates.ranks},
             {"read_gbps", 1e-9 * rates.read_bytes_s},
             {"bf16_tflops", 1e-12 * rates.flops_s}};
  if (hardware.card) machine["card"] = hardware.card->value;
  if (p.alpha.value > 0) {
    record.group("workload")["alpha_assumed"] = p.alpha.value;
    record.group("workload")["alpha_source"] = p.alpha.source;
  }
  record.group("predicted") = speculate::prediction_json(p, c.spec.work.batch);
  record.group("spec") = {{"gamma", p.choice.gamma}, {"speedup_predicted", p.choice.speedup}};
  record.warn("calculated: nothing was measured, and alpha is an assumption");
  return record;
}

/// Calls `of_draft` for every draft of every point and every gamma, in their order.
template <class OfDraft>
void for_each_draft(const std::vector<Point>& points, const OfDraft& of_draft) {
  for (const Point& point : points)
    for (const speculate::NamedDraft& draft : point.recipe.bench.budgeted()) {
      const recipe::AutoCounts& gamma = point.recipe.spec.gamma;
      const bool is_one = gamma.automatic() || draft.kind == speculate::DraftKind::none;
      std::vector<int> gammas = gamma.values;
      if (is_one) gammas = {0};
      if (!is_one && gamma.has_auto) gammas.push_back(0);
      for (const int g : gammas) {
        if (cli::is_interrupted()) return;
        of_draft(point, draft, g);
      }
    }
}

}  // namespace

int Bench::plan_predictions() {
  io::Table table({{"point", io::Align::left},
                   {"context"},
                   {"batch"},
                   {"draft", io::Align::left},
                   {"memory per GPU"},
                   {"max sequences"},
                   {"verdict", io::Align::left}});
  int status = 0;
  for_each_draft(points_, [&](const Point& point, const speculate::NamedDraft& draft, int gamma) {
    const Case c = case_of(point, draft, gamma);
    const speculate::HardwareSection& hardware = point.recipe.bench.hardware;
    const speculate::Prediction p = speculate::predict(hardware, c.target, draft, c.spec);
    const auto memory = hardware.memory_bytes();
    const bool has_room = fits(c, p);
    if (!has_room) status = exit_status(ErrorKind::memory);
    Json line = {{"event", "plan"},
                 {"point", point.id},
                 {"context_tokens", point.recipe.run.context.value},
                 {"batch", point.recipe.run.batch},
                 {"draft", draft.name},
                 {"fits", has_room}};
    if (p.most_sequences) line["most_sequences"] = *p.most_sequences;
    if (cx_.plans_as_json()) cx_.write_plan(line.dump());
    table.add_row({point.id, std::to_string(point.recipe.run.context.value),
                   std::to_string(point.recipe.run.batch), draft.name,
                   memory ? format_bytes(static_cast<size_t>(*memory)) : "",
                   p.most_sequences ? std::to_string(*p.most_sequences) : "",
                   !p.most_sequences ? "memory not given"
                   : has_room        ? "fits"
                                     : "does not fit"});
  });
  if (!cx_.plans_as_json()) cx_.out.write(table.render(bench::table_format(cx_.format())));
  return status;
}

int Bench::run_predictions() {
  BenchResults results(cx_, points_.front().recipe.output.path, {bench::predicted_view()});
  for_each_draft(points_, [&](const Point& point, const speculate::NamedDraft& draft, int gamma) {
    if (results.has(point.id, phase_of(point, draft, gamma))) return;
    try {
      const Case c = case_of(point, draft, gamma);
      const speculate::Prediction p =
          speculate::predict(point.recipe.bench.hardware, c.target, draft, c.spec);
      results.add(record_of(cx_, c, p));
    } catch (const Error& e) {
      results.add_failure(record_of(cx_, point, draft, gamma), e);
    }
  });
  cx_.note(
      "calculated: nothing was measured, and alpha is as given or a published value. min alpha: "
      "smallest acceptance rate with a speed-up of bench.speedup. critical context: smallest "
      "context with that speed-up");
  return results.finish();
}

}  // namespace tandem::tools
