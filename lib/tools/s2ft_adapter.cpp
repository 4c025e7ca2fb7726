#include "tools/s2ft_adapter.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "adapters/summary.h"
#include "adapters/written_form.h"
#include "bench/record_view.h"
#include "cli/output.h"
#include "cli/terminal.h"
#include "decode/fit/sizing.h"
#include "io/atomic_folder.h"
#include "io/quote.h"
#include "model/adapters/merge_check.h"
#include "model/spec/work.h"
#include "recipe/scalar.h"
#include "train/export/export_model.h"
#include "train/export/export_packed.h"

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

int64_t changed_weights(const adapters::OpenedAdapters& opened) {
  int64_t n = 0;
  const model::ModelConfig& config = opened.base.config;
  for (const model::WeightedAdapter& given : opened.adapters)
    for (int layer = 0; layer < config.n_layers; ++layer)
      for (const model::Role w : model::kLayerRoles)
        if (model::holds(given.adapter, {w, layer})) {
          const io::Shape shape = model::shape_of(w, config);
          n += shape[0] * shape[1];
        }
  return n;
}

}  // namespace

S2ftAdapter::S2ftAdapter(cli::Context& cx, const cli::Point<Recipe>& point)
    : cx_(cx),
      recipe_(point.recipe),
      opened_(adapters::open_adapters(recipe_)),
      formats_(opened_.base, recipe_.output),
      dtype_(formats_.numbers()) {
  decode::report_opening(cx_, opened_.base);
  if (writes_gguf()) cli::check_new_file(recipe_.output.path, cx_.file_mode());
  if (writes_folder() && !writes_gguf() && cx_.is_set("overwrite"))
    throw usage_error("--overwrite",
                      "replacing the folder of a model or an adapter is not supported")
        .hint("remove the folder first, or name another with -o");
  if (writes_folder() && (cx_.format() == "md" || cx_.format() == "csv"))
    throw usage_error("--format",
                      "expected text, json or jsonl with --to {}, which prints no table",
                      recipe::yaml_text(recipe_.adapter.to));
  adapters::check_apart(recipe_, opened_);
  for (const std::string& path : adapters::repeated(opened_))
    cx_.warn(fmt::format("{} is listed more than once, so its change is added each time", path));
  const decode::ModelFiles& base = opened_.base;
  for (size_t i = 0; i < opened_.adapters.size(); ++i)
    if (!fits_base(opened_.adapters[i])) {
      const model::AdapterBase of =
          std::get<model::Adapter>(opened_.adapters[i].adapter).info().base;
      cx_.warn(fmt::format("{} was trained on model {} (fingerprint {}), not on {} ({})",
                           opened_.paths[i], io::quote(of.name), of.fingerprint, base.name,
                           base.fingerprint));
    }
  if (recipe_.adapter.exclusive)
    adapters::check_exclusive(opened_, model::find_overlaps(opened_.adapters, base.config));
}

bool S2ftAdapter::fits_base(const model::WeightedAdapter& given) const {
  const auto* adapter = std::get_if<model::Adapter>(&given.adapter);
  return adapter == nullptr || adapter->info().base.fingerprint == opened_.base.fingerprint;
}

std::string S2ftAdapter::model_line() const {
  std::string names;
  for (size_t i = 0; i < opened_.paths.size(); ++i) {
    names += (i == 0 ? "" : ", ") + opened_.paths[i];
    if (const float by = opened_.adapters[i].weight; by != 1) names += fmt::format("={}", by);
  }
  return fmt::format("merged   {} with {}  {} weights, matrices in {}", opened_.base.name,
                     names.empty() ? "no adapter" : names, model::n_params(opened_.base.config),
                     formats_.text());
}

int S2ftAdapter::print_plan() {
  const int64_t weights = model::n_params(opened_.base.config);
  const std::string form = recipe::yaml_text(recipe_.adapter.to), &tuned = recipe_.adapter.tuned;
  if (recipe_.adapter.to == adapters::AdapterForm::model) require_folder();
  if (cx_.plans_as_json()) {
    nlohmann::ordered_json json = {{"adapters", opened_.paths}};
    if (!tuned.empty()) json["tuned"] = tuned;
    json.update({{"base", opened_.base.name},
                 {"to", form},
                 {"dtype", dtype_name(dtype_)},
                 {"weights", weights}});
    cx_.out.line(json.dump());
    return 0;
  }
  for (size_t i = 0; i < opened_.paths.size(); ++i)
    cx_.out.line(
        fmt::format("adapter  {}  weight {}", opened_.paths[i], opened_.adapters[i].weight));
  if (!tuned.empty())
    cx_.out.line(fmt::format("tuned    {}  compared with {}, {} weights", tuned, opened_.base.name,
                             weights));
  if (recipe_.adapter.to == adapters::AdapterForm::model)
    cx_.out.line(fmt::format("{}\nmodel    {}  about {} bytes", model_line(),
                             recipe_.output.path.string(), formats_.bytes()));
  else if (writes_folder())
    cx_.out.line(fmt::format("{:8} {}", form, recipe_.output.path.string()));
  return 0;
}

int S2ftAdapter::run() {
  if (const std::string& tuned = recipe_.adapter.tuned; !tuned.empty()) {
    const decode::ModelFiles& base = opened_.base;
    const int64_t passes = 1 + recipe_.adapter.verify;
    ReadProgress line(cx_, "compare", passes * model::n_params(base.config));
    adapters::add_extracted(opened_, tuned, std::ref(line));
    if (recipe_.adapter.verify) {
      const model::MergeCheck found = model::check_merged(
          *base.source, *decode::open_model(tuned, opened_.seed).source, *base.source,
          opened_.adapters, base.config, DType::f32, std::ref(line));
      checks_ = fmt::format("verified tuned     {} weights equal the adapter's, {} the base's\n",
                            found.inside, found.outside);
    }
  }
  if (!recipe_.adapter.ranks.empty()) return write_ranks();
  return writes_folder() ? write_folder() : write_summary();
}

std::string S2ftAdapter::verify(const model::WeightSource& merged) const {
  const decode::ModelFiles& base = opened_.base;
  ReadProgress line(cx_, "verify", model::n_params(base.config));
  const model::MergeCheck found =
      model::check_merged(*base.source, merged, *opened_.merged(), opened_.adapters, base.config,
                          dtype_, std::ref(line));
  std::string text;
  if (std::ranges::all_of(opened_.adapters, [&](const auto& given) { return fits_base(given); }))
    text =
        fmt::format("verified base      fingerprint {} matches {}\n", base.fingerprint, base.name);
  text += fmt::format(
      "verified adapter   indices (in range, ascending, entire heads), shapes, finite "
      "values\nverified outside   {} weights equal the base's bit for bit in {}\n",
      found.outside, dtype_name(dtype_));
  if (found.inside > 0)
    text += fmt::format("verified inside    {} weights equal the adapter's values in {}\n",
                        found.inside, dtype_name(dtype_));
  if (found.summed > 0)
    text += fmt::format(
        "verified sums      {} weights equal the base's plus the weighted changes\n", found.summed);
  if (found.whole > 0)
    text += fmt::format(
        "verified matrices  {} weights of changed matrices are finite and equal after merging "
        "again\n",
        found.whole);
  return text;
}

void S2ftAdapter::require_folder() const {
  if (opened_.base.gguf)
    throw input_error(opened_.base.folder.string(), "is a GGUF file, into which nothing is merged")
        .hint("merge into the original Hugging Face folder, or run adapters with model.adapters");
}

std::string S2ftAdapter::verify_codes(const std::filesystem::path& path,
                                      const model::WeightSource& source) const {
  ReadProgress line(cx_, "verify", model::n_params(opened_.base.config));
  return fmt::format("verified file      {} weights equal those that were written\n",
                     adapters::verify_written(path, opened_, formats_, source, std::ref(line)));
}

std::string S2ftAdapter::write_model(const std::filesystem::path& folder) {
  const model::ModelConfig& config = opened_.base.config;
  const auto codes = formats_.coded()
                         ? adapters::source_in(formats_, opened_, recipe_.output.scale_search)
                         : nullptr;
  {
    cli::Progress line(cx_.terminal, "merge", 100, "%");
    const auto progress = [&](double share) { return line.go_on(100 * share); };
    if (codes)
      train::export_packed(
          folder, opened_.base.folder, config, *codes,
          [&](model::MatrixId id) { return formats_.of(id); }, progress);
    else
      train::export_model(folder, opened_.base.folder, config, *opened_.merged(), {}, {}, dtype_,
                          progress);
  }
  std::string text = model_line() + "\n";
  if (!recipe_.adapter.verify) return text;
  return text + (codes
                     ? verify_codes(folder, *codes)
                     : verify(*model::checkpoint_source(config, model::Checkpoint::open(folder))));
}

int S2ftAdapter::write_gguf_file() {
  const std::filesystem::path& path = recipe_.output.path;
  const auto source = adapters::source_in(formats_, opened_, recipe_.output.scale_search);
  {
    cli::Progress line(cx_.terminal, "merge", 100, "%");
    adapters::write_gguf(path, opened_, formats_, *source, cx_.existing(),
                         [&](double share) { return line.go_on(100 * share); });
  }
  std::string text = model_line() + "\n";
  if (recipe_.adapter.verify) text += verify_codes(path, *source);
  say_written("model", text, model_json());
  return 0;
}

nlohmann::ordered_json S2ftAdapter::model_json() const {
  nlohmann::ordered_json json = {{"dtype", dtype_name(dtype_)}};
  if (formats_.coded()) json["weights"] = formats_.text();
  return json;
}

void S2ftAdapter::say_written(const std::string& what, const std::string& text,
                              const nlohmann::ordered_json& more) {
  const std::string path = recipe_.output.path.string();
  if (!cx_.format().starts_with("json"))
    return cx_.out.write(fmt::format("{}{}{:8} {}\n", checks_, text, what, path));
  nlohmann::ordered_json json = {{what, path}};
  json.update(more);
  json["verified"] = recipe_.adapter.verify;
  cx_.out.line(json.dump());
}

int S2ftAdapter::write_folder() {
  const adapters::AdapterSettings& settings = recipe_.adapter;
  const bool to_model = settings.to == adapters::AdapterForm::model;
  if (to_model) require_folder();
  if (writes_gguf()) return write_gguf_file();
  io::AtomicFolder folder(recipe_.output.path);
  adapters::WrittenForm form;
  if (to_model) {
    form = {.text = write_model(folder.temporary()), .json = model_json()};
  } else {
    const int64_t passes = 1 + (settings.to_lora() && settings.verify);
    ReadProgress line(cx_, "write", passes * model::n_params(opened_.base.config));
    form = settings.to_lora()
               ? adapters::write_lora_form(folder.temporary(), opened_, settings, std::ref(line))
               : adapters::write_slices_form(folder.temporary(), opened_, settings.verify,
                                             std::ref(line));
  }
  folder.commit();
  say_written(to_model ? "model" : "adapter", form.text, form.json);
  return 0;
}

int S2ftAdapter::write_ranks() {
  cli::ResultFile file(recipe_.output.path, cx_.file_mode(), cx_.out);
  ReadProgress line(cx_, "factors", model::n_params(opened_.base.config));
  const adapters::WrittenForm form = adapters::describe_ranks(
      opened_, recipe_.adapter.ranks, bench::table_format(cx_.format()), std::ref(line));
  file.write(cx_.format().starts_with("json") ? form.json.dump() + "\n"
             : cx_.format() == "csv"          ? bench::csv_of(form.json["ranks"])
                                              : form.text);
  file.commit();
  return 0;
}

int S2ftAdapter::write_summary() {
  cli::ResultFile file(recipe_.output.path, cx_.file_mode(), cx_.out);
  const bool several = opened_.adapters.size() > 1, as_csv = cx_.format() == "csv",
             as_text = !as_csv && !cx_.format().starts_with("json");
  const io::TableFormat format = bench::table_format(cx_.format());
  ReadProgress line(cx_, "read", changed_weights(opened_));
  nlohmann::ordered_json json = {{"adapters", nlohmann::ordered_json::array()}};
  std::string text;
  for (size_t i = 0; i < opened_.adapters.size(); ++i) {
    const adapters::AdapterSummary summary =
        adapters::summarise(opened_.adapters[i], opened_.base.config, *opened_.base.source,
                            *opened_.merged_with({opened_.adapters[i]}), std::ref(line));
    if (as_text)
      text += summary.text(opened_.paths[i], format) + (several ? "\n" : "");
    else
      json["adapters"].push_back(summary.json(opened_.paths[i]));
  }
  if (several) {
    const auto overlaps = model::find_overlaps(opened_.adapters, opened_.base.config);
    if (as_text)
      text += adapters::overlaps_text(overlaps, format);
    else
      json["overlaps"] = adapters::overlaps_json(overlaps);
  }
  if (recipe_.adapter.verify) {
    text += (format == io::TableFormat::markdown ? "\n" : "") + checks_ + verify(*opened_.merged());
    json["verified"] = true;
  }
  if (as_csv) {
    std::vector<bench::Json> rows;
    for (const auto& adapter : json["adapters"])
      for (const auto& matrix : adapter["matrices"]) {
        rows.push_back({{"adapter", adapter["adapter"]}});
        rows.back().update(matrix);
      }
    text = bench::csv_of(rows);
    if (json.contains("overlaps") && !json["overlaps"].empty())
      text += "\n" + bench::csv_of(json["overlaps"]);
  }
  // A name that is not UTF-8 is no reason to fail.
  file.write(as_text || as_csv
                 ? text
                 : json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) +
                       "\n");
  file.commit();
  return 0;
}

}  // namespace tandem::tools
