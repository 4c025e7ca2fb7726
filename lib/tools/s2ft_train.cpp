#include "tools/s2ft_train.h"

#include <optional>

#include "cli/plan_text.h"
#include "cli/terminal.h"
#include "decode/fit/sizing.h"
#include "decode/prompts.h"
#include "io/quote.h"
#include "recipe/units.h"
#include "tools/training/show_samples.h"
#include "train/run/data_report.h"
#include "train/run/training_run.h"

#include <nlohmann/json.hpp>

namespace tandem::tools {
namespace {

/// The N of --show-samples, 0 without it.
int64_t shown_samples(const cli::Context& cx) {
  const auto text = cx.value("show-samples");
  if (!text) return 0;
  int64_t n = 0;
  if (!recipe::parse_units(*text, n).empty() || n < 1)
    throw usage_error("--show-samples", "expected a number of samples of at least 1, found '{}'",
                      *text);
  if (cx.dry_run())
    throw usage_error("--show-samples", "cannot be combined with --dry-run")
        .hint("use only one of them: each reads the data and does not train");
  return n;
}

/// Commands that use what a run has written.
std::string next_lines(const train::TrainRecipe& recipe, const decode::ModelFiles& files) {
  using train::TrainingRun;
  const std::string base = io::shell_word(recipe.model.path.value);
  const auto file = [&](const char* name) { return recipe.output.path / name; };
  std::string folder = recipe.output.path.string();
  while (folder.size() > 1 && folder.ends_with('/')) folder.pop_back();
  std::string text;
  if (files.gguf) {
    text += fmt::format("next     pig-generate -m {} -s {} -p PROMPT\n", base,
                        io::shell_word(fmt::format("model.adapters=[{{path: {}}}]",
                                                   file(TrainingRun::kAdapter).string())));
  } else if (!files.synthetic()) {
    const std::filesystem::path prompt = file(TrainingRun::kModel) / TrainingRun::kPrompt;
    text += fmt::format(
        "next     pig-generate -m {} {}\n", io::shell_word(file(TrainingRun::kModel).string()),
        std::filesystem::exists(prompt) ? "-f " + io::shell_word(prompt.string()) : "-p PROMPT");
  }
  if (recipe.train.method == train::Method::s2ft)
    text += fmt::format("next     s2ft-adapter -m {} --adapter {} --to peft -o {}\n", base,
                        io::shell_word(folder + (folder.find('=') < folder.size() ? "=1" : "")),
                        io::shell_word(folder + "-peft"));
  return text;
}

}  // namespace

S2ftTrain::S2ftTrain(cli::Context& cx, const cli::Point<Recipe>& point)
    : cx_(cx),
      point_(point),
      recipe_(point.recipe),
      n_shown_(shown_samples(cx)),
      files_(decode::open_model(recipe_.model, static_cast<uint64_t>(recipe_.run.seed))),
      data_(load_data()) {
  const int context = files_.config.max_context;
  for (const train::Dataset* data : {&data_.data, &data_.val_data})
    if (data->longest_rows() > context)
      throw recipe_error("train.max_tokens",
                         "a sample has {} tokens, but the context of {} is only {}",
                         data->longest_rows(), files_.name, context)
          .hint(fmt::format("set train.max_tokens: {}", context));
  warn();
}

train::TrainingData S2ftTrain::load_data() const {
  const train::SampleEncoder encoder(recipe_.data, files_.tokenizer.get(), files_.folder,
                                     files_.config.vocab_size, decode::chat_settings(recipe_.chat));
  std::optional<cli::Progress> line;
  return train::load_training_data(
      recipe_.data, recipe_.train.batches, encoder, static_cast<uint64_t>(recipe_.run.seed),
      [&](int64_t done, int64_t all) {
        if (!line) line.emplace(cx_.terminal, "data", static_cast<double>(all), "records");
        const bool go_on = line->go_on(static_cast<double>(done));
        if (done == all) line.reset();
        return go_on;
      });
}

void S2ftTrain::warn() const {
  decode::report_opening(cx_, files_);
  if (const int64_t n = data_.data.counts().endless; n > 0)
    cx_.warn(fmt::format(
        "{} answers do not end with a control token, so generation would not learn where to stop",
        n));
  if (const int64_t n = data_.data.counts().doubled; n > 0)
    cx_.warn(fmt::format(
        "{} samples begin with two BOS tokens: one in their text, one added by the tokenizer or "
        "the template",
        n));
  if (const int64_t n = data_.data.counts().answer_cut; n > 0)
    cx_.warn(
        fmt::format("{} records are left out because their answers begin beyond train.max_tokens, "
                    "{}",
                    n, recipe_.train.batches.max_tokens.value));
  if (const int64_t n = data_.data.counts().truncated; n > 0)
    cx_.warn(fmt::format("{} samples are cut to train.max_tokens, {}", n,
                         recipe_.train.batches.max_tokens.value));
}

int S2ftTrain::print_plan() {
  const train::DataReport report(recipe_, data_);
  const train::TrainingRun training(cx_, (*point_.record)["effective"], recipe_, files_, data_,
                                    {.plans = true});
  auto json = report.json();
  training.add_to(json);
  json["recipe_sha256"] = point_.sha256;
  try {
    cli::print_plan(cx_,
                    report.text(recipe_.data.path.string()) + training.text() +
                        fmt::format("recipe   sha256 {}\n", point_.sha256),
                    json, training.plan(), training.limits());
  } catch (Error& e) {
    if (e.kind() != ErrorKind::memory) throw;
    throw std::move(e).hint(training.memory_advice());
  }
  return 0;
}

int S2ftTrain::run() {
  if (n_shown_ > 0) return show();
  train::TrainingRun(cx_, (*point_.record)["effective"], recipe_, files_, data_,
                     {.resumes = cx_.is_set("resume"), .begins_again = cx_.is_set("overwrite")})
      .run();
  if (cx_.place().rank == 0) cx_.out.write(next_lines(recipe_, files_));
  return 0;
}

int S2ftTrain::show() {
  const train::Epoch first(data_.data, data_.train, recipe_.train.batches,
                           static_cast<uint64_t>(recipe_.run.seed), 0);
  show_samples(cx_, first, data_.data, files_.tokenizer.get(), n_shown_);
  return 0;
}

}  // namespace tandem::tools
