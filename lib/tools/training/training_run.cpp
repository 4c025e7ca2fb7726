#include "tools/training/training_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "cli/plan_text.h"
#include "recipe/scalar.h"
#include "tools/engines/load_engine.h"
#include "tools/training/metrics_file.h"
#include "train/export_adapter.h"
#include "train/export_model.h"

namespace tandem::tools {
namespace {

constexpr const char* kCheckpoint = "checkpoint.safetensors";
constexpr const char* kMetrics = "metrics.jsonl";
constexpr const char* kModel = "model";
/// Steps in a row without a finite loss or gradient, after which a run ends.
constexpr int kMostSkipped = 10;

void check_built(const TrainRecipe& recipe) {
  const auto missing = [](const char* key, const std::string& value, const char* instead) {
    return recipe_error(key, "is {}, which is not built into this version yet", value)
        .hint(fmt::format("choose {}", instead));
  };
  if (recipe.run.device.starts_with("cuda"))
    throw Error(ErrorKind::device, "run.device",
                recipe.run.device + ": training runs on the CPU only")
        .hint("add --device cpu");
  if (recipe.train.recompute == train::RecomputeLevel::none)
    throw missing("train.recompute", "0", "1: outputs of norms are always computed again");
  if (recipe.train.optimizer.states == train::StateType::bf16)
    throw missing("train.optimizer.states", "bf16", "f32");
}

train::Schedule schedule_of(const train::TrainSettings& t, int64_t steps) {
  using Kind = train::Schedule::Kind;
  const train::ScheduleSettings& s = t.schedule;
  return {.kind = s.kind == train::ScheduleKind::cosine     ? Kind::cosine
                  : s.kind == train::ScheduleKind::constant ? Kind::constant
                                                            : Kind::linear,
          .rate = t.optimizer.lr_of(t.method),
          .warmup_steps = s.warmup_of(steps),
          .steps = steps,
          .from_zero = s.warmup_from_zero,
          .least_share = s.min_lr_ratio.value};
}

int64_t or_tenth(const std::optional<int>& every, int64_t steps) {
  return every ? *every : std::max<int64_t>(1, steps / 10);
}

}  // namespace

TrainingRun::TrainingRun(cli::Context& cx, const cli::PointName& point, const TrainRecipe& recipe,
                         const decode::ModelFiles& files, const train::TrainingData& data,
                         bool plans)
    : cx_(cx),
      point_(point),
      recipe_(recipe),
      files_(files),
      data_(data),
      steps_per_epoch_(
          train::Epoch::n_steps(static_cast<int64_t>(data.train.size()), recipe.train.batches)),
      n_steps_(recipe.train.n_steps(steps_per_epoch_)),
      spec_(trainer_spec()),
      limits_(cli::memory_limits(recipe.run, {})) {
  check_built(recipe);
  train::TrainSettings settings = recipe.train;
  if (plans) settings.select.strategy = train::Strategy::random;
  set_ = train::choose_set(settings, spec_, static_cast<uint64_t>(recipe.run.seed), calibration());
  MemoryPlan program;
  program.add("process/program and data", resident_bytes());
  const size_t room = limits_.host - std::min(limits_.host, program.peak({}));
  if (recipe.train.recompute == train::RecomputeLevel::automatic)
    spec_.recompute = train::Trainer::least_recompute(spec_, set_, room);
  plan_ = train::Trainer::plan(spec_, set_);
  plan_.add("process/program and data", resident_bytes());
}

train::TrainerSpec TrainingRun::trainer_spec() const {
  const train::TrainSettings& t = recipe_.train;
  const auto longest =
      static_cast<int64_t>(std::max(data_.data.longest_rows(), data_.val_data.longest_rows()));
  const int64_t most = t.batches.most_samples();
  const int64_t rows = std::max(longest, std::min(t.batches.micro_tokens.value, longest * most));
  const train::OptimizerSettings& o = t.optimizer;
  return {.config = files_.config,
          .dtype = recipe_.model.compute == recipe::Compute::f32 ? DType::f32 : DType::bf16,
          .max_rows = static_cast<int>(rows),
          .max_documents = static_cast<int>(std::min(most, rows)),
          .schedule = schedule_of(t, n_steps_),
          .optimizer = {.beta1 = static_cast<float>(o.betas[0]),
                        .beta2 = static_cast<float>(o.betas[1]),
                        .epsilon = static_cast<float>(o.eps),
                        .weight_decay = static_cast<float>(o.weight_decay)},
          .decays_to_start = o.weight_decay_target == train::DecayTarget::delta,
          .clip = o.clip,
          .recompute = t.recompute == train::RecomputeLevel::layer ? train::Recomputation::layer
                       : t.recompute == train::RecomputeLevel::ffn ? train::Recomputation::ffn
                                                                   : train::Recomputation::light,
          .interrupted = cli::is_interrupted};
}

train::CalibrationData TrainingRun::calibration() const {
  const auto seed = static_cast<uint64_t>(recipe_.run.seed);
  return {
      .source = [this,
                 seed] { return std::move(decode::open_model(recipe_.model.path, seed).source); },
      .batches =
          [this, seed] {
            const train::Epoch epoch(data_.data, data_.train, recipe_.train.batches, seed, 0);
            const double share = recipe_.train.select.calibration.value;
            const auto n =
                static_cast<int64_t>(std::ceil(share * static_cast<double>(epoch.n_steps())));
            std::vector<train::MicroBatch> all;
            for (int64_t step = 0; step < n; ++step)
              for (const train::MicroPlan& p : epoch.step(step))
                all.push_back(train::make_micro_batch(data_.data, p));
            return all;
          }};
}

train::RunIdentity TrainingRun::identity() const {
  train::RunIdentity id = {{"model", files_.fingerprint}, {"data", data_.data.fingerprint()}};
  // Settings that change no bit of the trained values.
  const std::vector<std::string> free = {"/output",
                                         "/eval",
                                         "/run/threads",
                                         "/run/host_memory_limit",
                                         "/run/gpu_memory_limit",
                                         "/run/plan_for",
                                         "/train/save_every",
                                         "/train/keep",
                                         "/data/path",
                                         "/data/val_path",
                                         "/model/path"};
  const nlohmann::json flat = (*point_.record)["effective"].flatten();
  for (const auto& [key, value] : flat.items()) {
    if (std::ranges::any_of(free, [&](const std::string& f) { return key.starts_with(f); }))
      continue;
    std::string name = key.substr(1);
    std::ranges::replace(name, '/', '.');
    id[name] = value.dump();
  }
  return id;
}

std::string TrainingRun::text() const {
  return fmt::format("train    {}  {} of {} values\n{}{}", recipe::yaml_text(recipe_.train.method),
                     set_.size, model::n_params(files_.config),
                     train::describe(train::frontier_of(set_, spec_.config, spec_.recompute)),
                     cli::memory_lines(plan_, limits_) + "\n");
}

void TrainingRun::add_to(nlohmann::ordered_json& json) const {
  json["trained_values"] = set_.size;
  json.update(cli::memory_json(plan_, limits_));
}

int64_t TrainingRun::begin(train::Trainer& trainer) {
  if (recipe_.output.path.empty())
    throw recipe_error("output.path", "names no folder to keep the run in").hint("add -o FOLDER");
  std::error_code code;
  std::filesystem::create_directories(recipe_.output.path, code);
  if (code) throw input_error(recipe_.output.path.string(), "cannot be made: {}", code.message());
  const bool resumes = cx_.is_set("resume");
  if (cx_.is_set("overwrite")) {
    if (resumes)
      throw usage_error("--resume", "cannot be combined with --overwrite, which begins again");
    for (const char* name : {kCheckpoint, kMetrics}) std::filesystem::remove(file(name), code);
  }
  if (std::filesystem::exists(file(kMetrics)) && !resumes)
    throw usage_error("output.path", "{} holds a run already", recipe_.output.path.string())
        .hint("add --resume to go on with it, --overwrite to begin again, or name another folder");
  if (!std::filesystem::exists(file(kCheckpoint))) return 0;
  const int64_t done = train::load_checkpoint(file(kCheckpoint), trainer, identity());
  cx_.note(fmt::format("goes on after step {} of {}", done, n_steps_));
  return done;
}

std::vector<train::MicroBatch> TrainingRun::batches(int64_t step) {
  const int64_t number = step / steps_per_epoch_;
  if (number != epoch_number_) {
    epoch_.clear();
    epoch_.emplace_back(data_.data, data_.train, recipe_.train.batches,
                        static_cast<uint64_t>(recipe_.run.seed), number);
    epoch_number_ = number;
  }
  std::vector<train::MicroBatch> all;
  for (const train::MicroPlan& p : epoch_.front().step(step % steps_per_epoch_))
    all.push_back(train::make_micro_batch(data_.data, p));
  return all;
}

train::LossSum TrainingRun::validate(train::Trainer& trainer) const {
  train::LossSum all;
  for (const train::MicroPlan& p : divide(data_.validation(), data_.val, recipe_.train.batches)) {
    const train::MicroBatch batch = train::make_micro_batch(data_.validation(), p);
    const train::LossSum part = trainer.loss({&batch, 1});
    all.sum += part.sum;
    all.n_tokens += part.n_tokens;
  }
  return all;
}

void TrainingRun::export_trained(train::Trainer& trainer) const {
  if (files_.synthetic()) {
    cx_.note("a synthetic model has no folder: no model is written");
    return;
  }
  train::export_model(file(kModel), files_.folder, files_.config, *calibration().source(),
                      trainer.set(), trainer.state().values, spec_.dtype);
}

int TrainingRun::run() {
  admit_plan(cx_, plan_, limits_);
  train::Trainer trainer(spec_, set_, calibration().source(), [](double) {});
  int64_t step = begin(trainer);
  MetricsFile metrics(file(kMetrics), step);
  const int64_t save_every = or_tenth(recipe_.train.save_every, n_steps_),
                eval_every = or_tenth(recipe_.eval.every, n_steps_);
  cli::Progress progress(cx_.terminal, "training", static_cast<double>(n_steps_), "steps");
  int skipped = 0;
  int64_t tokens = 0;
  double first_loss = 0, last_loss = 0, val_loss = 0;
  const Stopwatch whole;
  const auto save = [&] {
    train::save_checkpoint(file(kCheckpoint), trainer, step, identity());
    metrics.sync();
  };
  try {
    for (const int64_t begun = step; step < n_steps_;) {
      const Stopwatch watch;
      const train::StepResult r = trainer.step(batches(step));
      ++step;
      tokens += r.n_rows;
      last_loss = r.loss.mean();
      if (step == begun + 1) first_loss = last_loss;
      metrics.add_step(step, (step - 1) / steps_per_epoch_, r, watch.seconds());
      skipped = r.skipped ? skipped + 1 : 0;
      if (skipped >= kMostSkipped)
        throw Error::make(ErrorKind::numeric, fmt::format("step {}", step),
                          "{} steps in a row had no finite loss or gradient", skipped)
            .hint("lower train.optimizer.lr, or look at the data with --show-samples");
      const bool ends = step == n_steps_;
      if (!data_.val.empty() && (step % eval_every == 0 || ends) &&
          static_cast<double>(step) >= recipe_.eval.from.value * static_cast<double>(n_steps_)) {
        val_loss = validate(trainer).mean();
        metrics.add_validation(step, val_loss);
      }
      if (step % save_every == 0 || ends) save();
      progress.update(static_cast<double>(step));
    }
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::interrupted) throw;
    save();
    cx_.note(fmt::format("stopped after step {} of {}: --resume goes on", step, n_steps_));
    throw;
  }
  train::export_adapter(file("adapter"), files_, recipe_.train, recipe_.run.seed, trainer);
  export_trained(trainer);
  const double s = whole.seconds();
  cx_.out.line(fmt::format(
      "trained  {} steps, {} tokens in {:.1f} s ({:.0f} a second)  loss {:.4f} to {:.4f}{}",
      n_steps_, tokens, s, static_cast<double>(tokens) / s, first_loss, last_loss,
      data_.val.empty() ? "" : fmt::format(", validation {:.4f}", val_loss)));
  if (!files_.synthetic()) cx_.out.line(fmt::format("model    {}", file(kModel).string()));
  return 0;
}

}  // namespace tandem::tools
