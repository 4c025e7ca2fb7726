#include "train/run/data_report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "recipe/scalar.h"

namespace tandem::train {
namespace {

double share(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

/// Records that gave no sample, or not a whole one; empty if there are none.
std::string lost_line(const char* which, const DatasetCounts& c) {
  std::string text;
  const auto add = [&](int64_t n, const char* why) {
    if (n > 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", n, why);
  };
  add(c.unsupervised, "left out (no answer)");
  add(c.answer_cut, "left out (answer begins beyond train.max_tokens)");
  add(c.too_long, "left out (too long)");
  add(c.truncated, "cut to train.max_tokens");
  return text.empty() ? text : fmt::format("records  {}{}\n", which, text);
}

}  // namespace

DataReport::DataReport(const TrainRecipe& recipe, const TrainingData& data)
    : counts(data.data.counts()),
      val_counts(data.val_data.counts()),
      longest(data.data.longest_rows()),
      n_train(static_cast<int64_t>(data.train.size())),
      n_val(static_cast<int64_t>(data.val.size())),
      batches(recipe.train.batches) {
  const Epoch first(data.data, data.train, batches, static_cast<uint64_t>(recipe.run.seed), 0);
  epoch = count(first, data.data);
  steps = recipe.train.n_steps(epoch.steps);
}

double DataReport::fill() const {
  return share(epoch.rows, epoch.micro_batches * batches.micro_tokens.value);
}

double DataReport::padding() const { return 1 - share(epoch.rows, epoch.padded_rows); }

std::string DataReport::text(const std::string& path) const {
  std::string text =
      fmt::format("data     {}  {} records, {} samples  {} for training, {} for validation\n", path,
                  counts.records, counts.samples, n_train, n_val);
  text += lost_line("", counts) + lost_line("validation: ", val_counts);
  text += fmt::format(
      "tokens   {} per epoch, {} supervised ({:.1f} %)  {:.1f} per sample, longest {}\n",
      epoch.rows, epoch.supervised, 100 * share(epoch.supervised, epoch.rows),
      share(epoch.rows, epoch.samples), longest);
  text += fmt::format(
      "batches  {}  {} micro-batches per epoch, at most {} tokens  padding {:.1f} %, {:.1f} % of "
      "{} tokens filled\n",
      recipe::yaml_text(batches.batching), epoch.micro_batches, epoch.most_rows, 100 * padding(),
      100 * fill(), batches.micro_tokens.value);
  text += fmt::format("steps    {} per epoch, {} samples each  {} in total\n", epoch.steps,
                      batches.batch, steps);
  return text;
}

nlohmann::ordered_json DataReport::json() const {
  const auto records = [](const DatasetCounts& c) {
    return nlohmann::ordered_json{{"records", c.records},
                                  {"samples", c.samples},
                                  {"without_answer", c.unsupervised},
                                  {"answer_beyond_max_tokens", c.answer_cut},
                                  {"too_long", c.too_long},
                                  {"truncated", c.truncated}};
  };
  nlohmann::ordered_json data = records(counts);
  data.update({{"train_samples", n_train}, {"val_samples", n_val}, {"longest_tokens", longest}});
  if (val_counts.records > 0) data["validation"] = records(val_counts);
  return {{"data", data},
          {"epoch",
           {{"steps", epoch.steps},
            {"micro_batches", epoch.micro_batches},
            {"tokens", epoch.rows},
            {"supervised_tokens", epoch.supervised},
            {"padding", padding()},
            {"fill", fill()},
            {"most_tokens", epoch.most_rows}}},
          {"steps", steps}};
}

}  // namespace tandem::train
