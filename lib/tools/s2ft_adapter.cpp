#include "tools/s2ft_adapter.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "cli/terminal.h"
#include "io/atomic_folder.h"
#include "io/quote.h"
#include "model/adapters/low_rank_adapter.h"
#include "recipe/fields_of.h"
#include "recipe/scalar.h"
#include "tools/adapters/merge_check.h"
#include "tools/adapters/summary.h"
#include "train/export/export_model.h"

namespace tandem::tools {
namespace {

/// A line that grows with the weights that are read.
class ReadProgress {
 public:
  ReadProgress(cli::Context& cx, const char* label, int64_t n)
      : line_(cx.terminal, label, static_cast<double>(n), "weights") {}
  bool operator()(int64_t n) {
    done_ += n;
    return line_.go_on(static_cast<double>(done_));
  }

 private:
  int64_t done_ = 0;
  cli::Progress line_;
};

/// bf16 if all matrices of the base are; in f32 no other type loses a bit.
DType dtype_of(const decode::ModelFiles& files, MatrixType asked) {
  if (asked != MatrixType::automatic) return asked == MatrixType::f32 ? DType::f32 : DType::bf16;
  if (files.synthetic()) return DType::bf16;
  const auto checkpoint = model::Checkpoint::open(files.folder);
  const auto is_bf16 = [&](model::Weight weight, int layer) {
    return model::weight_shape(weight, files.config).size() == 1 ||
           checkpoint.weight(weight, layer).dtype == DType::bf16;
  };
  bool all = true;
  for (const model::Weight w : model::global_weights(files.config)) all = all && is_bf16(w, 0);
  for (int layer = 0; layer < files.config.n_layers; ++layer)
    for (const model::Weight w : model::layer_weights(files.config)) all = all && is_bf16(w, layer);
  return all ? DType::bf16 : DType::f32;
}

model::Adapter open_slices(const std::filesystem::path& folder, const decode::ModelFiles& base,
                           bool force) {
  if (model::LowRankAdapter::is_at(folder))
    throw input_error(folder.string(), "is an adapter of PEFT's, of LoRA or DoRA, not of slices")
        .hint(fmt::format("every tool reads it with -s model.adapters=[{{path: {}}}]; the run that "
                          "wrote it has the merged model next to it",
                          folder.string()));
  return model::Adapter::open(folder, base.config, {base.name, base.fingerprint},
                              force ? model::OtherBase::allowed : model::OtherBase::refused);
}

int64_t changed_weights(const model::Adapter& adapter, const model::ModelConfig& config) {
  int64_t n = 0;
  for (int layer = 0; layer < config.n_layers; ++layer)
    for (const model::Weight w : model::adapter_weights())
      if (adapter.holds(w, layer)) {
        const io::Shape shape = model::weight_shape(w, config);
        n += shape[0] * shape[1];
      }
  return n;
}

}  // namespace

void AdapterRecipe::check(recipe::Problems& p) const {
  const bool to_model = adapter.to == AdapterForm::model;
  if (to_model && (output.path.empty() || output.path == "-"))
    p.field("output.path", "output.path: names no folder for the model: add -o FOLDER");
  if (to_model && model.path.value.starts_with("synthetic:"))
    p.field("adapter.to", "adapter.to: a synthetic model has no folder, so none can be written");
  if (!to_model && !adapter.verify && output.dtype != MatrixType::automatic)
    p.field("output.dtype", "output.dtype: is of a merged model: add --to model or --verify");
}

S2ftAdapter::S2ftAdapter(cli::Context& cx, const cli::Point<Recipe>& point)
    : cx_(cx),
      recipe_(point.recipe),
      folder_(model::adapter_folder(recipe_.adapter.path)),
      files_(decode::open_model(recipe_.model.path.value, static_cast<uint64_t>(recipe_.run.seed))),
      adapter_(open_slices(folder_, files_, recipe_.adapter.force)),
      dtype_(dtype_of(files_, recipe_.output.dtype)) {
  if (writes_model() && cx_.is_set("overwrite"))
    throw usage_error("--overwrite", "a model's folder is never replaced")
        .hint("remove it first, or name another with -o");
  if (!fits_base())
    cx_.warn(fmt::format("{} was trained on model {} (fingerprint {}), not on {} ({})",
                         folder_.string(), io::quote(adapter_.info().base.name),
                         adapter_.info().base.fingerprint, files_.name, files_.fingerprint));
}

bool S2ftAdapter::fits_base() const {
  return adapter_.info().base.fingerprint == files_.fingerprint;
}

std::unique_ptr<model::WeightSource> S2ftAdapter::merged() const {
  recipe::Model with = recipe_.model;
  with.adapters = {{.name = {}, .path = folder_, .force = recipe_.adapter.force}};
  return std::move(decode::open_model(with, static_cast<uint64_t>(recipe_.run.seed)).source);
}

std::string S2ftAdapter::model_line() const {
  return fmt::format("merged   {} with {}  {} weights, matrices in {}", files_.name,
                     folder_.string(), model::n_params(files_.config), dtype_name(dtype_));
}

int S2ftAdapter::print_plan() {
  if (cx_.plans_as_json()) {
    cx_.out.line(nlohmann::ordered_json{{"adapter", folder_.string()},
                                        {"base", files_.name},
                                        {"to", recipe::yaml_text(recipe_.adapter.to)},
                                        {"dtype", dtype_name(dtype_)},
                                        {"weights", model::n_params(files_.config)}}
                     .dump());
    return 0;
  }
  const model::AdapterInfo info = adapter_.info();
  cx_.out.line(fmt::format("adapter  {}  {}, {} steps, of {}", folder_.string(), info.format,
                           info.steps, io::quote(info.base.name)));
  if (writes_model())
    cx_.out.line(
        fmt::format("{}\nmodel    {}  about {} bytes", model_line(), recipe_.output.path.string(),
                    static_cast<size_t>(model::n_params(files_.config)) * dtype_bytes(dtype_)));
  return 0;
}

int S2ftAdapter::run() { return writes_model() ? write_model() : write_summary(); }

std::string S2ftAdapter::verify(const model::WeightSource& merged) const {
  ReadProgress line(cx_, "verify", model::n_params(files_.config));
  const MergeCheck found =
      check_merged(*files_.source, merged, adapter_, files_.config, dtype_, std::ref(line));
  std::string text = fits_base() ? fmt::format("verified base      fingerprint {} is that of {}\n",
                                               files_.fingerprint, files_.name)
                                 : std::string();
  text += fmt::format(
      "verified adapter   indices in range, ascending, of whole heads; shapes; all values finite\n"
      "verified outside   {} weights have the base's bytes in {}\n",
      found.outside, dtype_name(dtype_));
  if (found.inside > 0)
    text += fmt::format("verified inside    {} weights are the adapter's values in {}\n",
                        found.inside, dtype_name(dtype_));
  if (found.whole > 0)
    text +=
        fmt::format("verified matrices  {} weights of changed matrices are finite\n", found.whole);
  return text;
}

int S2ftAdapter::write_model() {
  io::AtomicFolder folder(recipe_.output.path);
  {
    cli::Progress line(cx_.terminal, "merge", 100, "%");
    train::export_model(folder.temporary(), files_.folder, files_.config, *merged(), {}, {}, dtype_,
                        [&](double share) { return line.go_on(100 * share); });
  }
  const std::string checks = recipe_.adapter.verify
                                 ? verify(*model::checkpoint_source(
                                       files_.config, model::Checkpoint::open(folder.temporary())))
                                 : std::string();
  folder.commit();
  if (cx_.format() == "json")
    cx_.out.line(nlohmann::ordered_json{{"model", recipe_.output.path.string()},
                                        {"dtype", dtype_name(dtype_)},
                                        {"verified", recipe_.adapter.verify}}
                     .dump());
  else
    cx_.out.write(
        fmt::format("{}\n{}model    {}\n", model_line(), checks, recipe_.output.path.string()));
  return 0;
}

int S2ftAdapter::write_summary() {
  cli::ResultFile file(recipe_.output.path, cx_.file_mode(), cx_.out);
  const auto with = merged();
  ReadProgress line(cx_, "read", changed_weights(adapter_, files_.config));
  const AdapterSummary summary =
      summarise(adapter_, files_.config, *files_.source, *with, std::ref(line));
  const std::string checks = recipe_.adapter.verify ? verify(*with) : std::string();
  if (cx_.format() == "json") {
    auto json = summary.json(folder_.string());
    if (recipe_.adapter.verify) json["verified"] = true;
    // A name that is not UTF-8 is no reason to fail.
    file.write(json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
  } else {
    file.write(summary.text(folder_.string()) + checks);
  }
  file.commit();
  return 0;
}

}  // namespace tandem::tools

template tandem::recipe::Field tandem::recipe::fields_of(tandem::tools::AdapterRecipe&);
