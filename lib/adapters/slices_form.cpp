#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "adapters/summary.h"
#include "adapters/written_form.h"
#include "base/error.h"
#include "io/json.h"
#include "model/adapters/merge_check.h"

namespace tandem::adapters {
namespace {

using Json = nlohmann::ordered_json;

/// How the parts of an adapter were chosen; null where it does not say.
Json selection_of(const model::Adapter& adapter) {
  const std::string text = adapter.info().selection;
  if (text.empty()) return {};
  return io::parse_json(text, adapter.file().where() + ": selection");
}

/// Of one adapter as it is what it says itself; else where the slices come from.
model::AdapterInfo info_of(const OpenedAdapters& opened) {
  model::AdapterInfo info{.base = {opened.base.name, opened.base.fingerprint}};
  Json parts = Json::array();
  for (const model::WeightedAdapter& given : opened.adapters) {
    const auto& adapter = std::get<model::Adapter>(given.adapter);
    info.steps += adapter.info().steps;
    parts.push_back({{"weight", written_weight(given.weight)},
                     {"steps", adapter.info().steps},
                     {"selection", selection_of(adapter)}});
  }
  const bool alone = parts.size() == 1 && opened.adapters.front().weight == 1;
  info.selection =
      (alone ? parts[0]["selection"] : Json{{"strategy", "fused"}, {"adapters", parts}}).dump();
  return info;
}

}  // namespace

WrittenForm write_slices_form(const std::filesystem::path& folder, const OpenedAdapters& opened,
                              bool verify, const model::WeightProgress& progress) {
  for (size_t i = 0; i < opened.adapters.size(); ++i)
    if (!std::holds_alternative<model::Adapter>(opened.adapters[i].adapter))
      throw input_error(opened.paths[i],
                        "expected slices, found LoRA or DoRA, which changes full matrices")
          .hint("add --to lora for slices and LoRA, or --to model for all kinds of adapter");
  const model::ModelConfig& config = opened.base.config;
  const auto merged = opened.merged();
  const std::vector<model::OwnedSlice> slices =
      model::fused_slices(*merged, opened.adapters, config);
  if (slices.empty())
    throw input_error(opened.paths.front(), "changes nothing: every weight is 0")
        .hint("give a weight other than 0: --adapter FOLDER=WEIGHT");
  for (const model::OwnedSlice& s : slices)
    if (!std::ranges::all_of(s.values, [](float x) { return std::isfinite(x); }))
      throw make_error(ErrorKind::numeric, model::canonical_name(s.id),
                       "its weighted change overflows f32")
          .hint("give a smaller weight: --adapter FOLDER=WEIGHT");
  model::write_adapter(folder, info_of(opened), model::slice_views(slices));
  int64_t values = 0;
  for (const model::OwnedSlice& s : slices) values += std::ssize(s.values);
  WrittenForm form{
      .text = fmt::format("slices   {} values of {} matrices, in F32\n", values, slices.size()),
      .json = {{"values", values}, {"matrices", slices.size()}}};
  if (!verify) return form;
  const model::WeightedAdapter written{model::Adapter::open(
      folder, config, {opened.base.name, opened.base.fingerprint}, model::OtherBase::refused)};
  const model::MergeCheck found = model::check_merged(*opened.base.source, *merged, *merged,
                                                      {&written, 1}, config, DType::f32, progress);
  form.text += fmt::format(
      "verified slices    read back, {} values equal the merged adapters bit for bit\nverified "
      "outside   {} other weights equal the base's bit for bit\n",
      found.inside, found.outside);
  return form;
}

}  // namespace tandem::adapters
