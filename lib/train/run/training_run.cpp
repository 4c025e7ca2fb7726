#include "train/run/training_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/cpu_features.h"
#include "base/sha256.h"
#include "decode/fit/load_engine.h"
#include "decode/fit/memory_text.h"
#include "decode/fit/sizing.h"
#include "io/atomic_file.h"
#include "io/claimed_files.h"
#include "model/spec/weight_formats.h"
#include "ranks/device_comm.h"
#include "recipe/fields.h"
#include "recipe/scalar.h"
#include "recipe/upgrade.h"
#include "tensor/driver_memory.h"
#include "tensor/gpu_isa.h"
#include "train/export/export_adapter.h"
#include "train/export/export_low_rank.h"
#include "train/export/export_model.h"
#include "train/run/trainer_spec.h"

namespace tandem::train {
namespace {

using Settings = std::map<std::string, std::string>;

/// Of the trained values: which ones they are.
std::string fingerprint_of(const TrainedSet& set) {
  std::string bytes = fmt::format("{} ", set.size);
  each_matrix(set, [&](const TrainedMatrix& m) {
    bytes += fmt::format("{} {} ", m.offset, m.size());
    bytes.append(reinterpret_cast<const char*>(m.index.data()), m.index.size() * sizeof(int32_t));
  });
  return sha256_hex(bytes).substr(0, 16);
}

/// The settings that decide the bits of a run, by key. Others may change when it goes on; the
/// device and how much is computed again are the identity's place.
Settings bit_settings(const nlohmann::json& effective) {
  const std::vector<std::string> free = {"/output",
                                         "/eval",
                                         "/run/device",
                                         "/run/threads",
                                         "/run/host_memory_limit",
                                         "/run/gpu_memory_limit",
                                         "/run/plan_for",
                                         "/run/rank",
                                         "/run/world_size",
                                         "/run/rendezvous",
                                         "/run/timeout",
                                         "/train/recompute",
                                         "/train/save_every",
                                         "/train/select/exclude",
                                         "/train/keep_checkpoints",
                                         "/train/log",
                                         "/data/path",
                                         "/data/val_path",
                                         "/model/path"};
  Settings settings;
  const nlohmann::json flat = effective.flatten();
  for (const auto& item : flat.items()) {
    const std::string& key = item.key();
    if (std::ranges::any_of(free, [&](const std::string& f) { return key.starts_with(f); }))
      continue;
    std::string name = key.substr(1);
    std::ranges::replace(name, '/', '.');
    settings[name] = item.value().dump();
  }
  return settings;
}

/// Settings that a checkpoint of an earlier version names, with those that they are now.
Settings upgraded(Settings then) {
  nlohmann::json flat = nlohmann::json::object();
  for (const auto& [key, text] : then) {
    std::string pointer = "/" + key;
    std::ranges::replace(pointer, '.', '/');
    const nlohmann::json value = nlohmann::json::parse(text, nullptr, false);
    if (key.find('.') != std::string::npos && !value.is_discarded()) flat[pointer] = value;
  }
  try {
    recipe::Node tree = recipe::node_of(flat.unflatten(), {});
    (void)recipe::upgrade_keys(tree, "train");
    recipe::Field fields = recipe::schema_of<TrainRecipe>();
    recipe::read_recorded(fields, std::move(tree));
    for (const auto& [key, value] : bit_settings(recipe::to_json(fields))) then[key] = value;
  } catch (const std::exception&) {  // a later version wrote it
  }
  return then;
}

}  // namespace

TrainingRun::TrainingRun(const decode::RunContext& cx, const nlohmann::json& settings,
                         const TrainRecipe& recipe, const decode::ModelFiles& files,
                         const TrainingData& data, const RunStart& start)
    : cx_(cx),
      settings_(settings),
      recipe_(recipe),
      files_(files),
      data_(data),
      start_(start),
      steps_per_epoch_(
          Epoch::n_steps(static_cast<int64_t>(data.train.size()), recipe.train.batches)),
      n_steps_(recipe.train.n_steps(steps_per_epoch_)),
      place_(decode::choose_placement(recipe.run, {}, start.plans, {}, cx.place())),
      spec_(trainer_spec(recipe, files.config, data, n_steps_, place_, cx)),
      excluded_(units_of_adapters(recipe.train.select.exclude, files.config,
                                  {files.name, files.adapter_base()})),
      limits_(decode::memory_limits(recipe.run, place_)) {
  spec_.n_ranks = cx.place().size;
  if (!start.plans && writes()) check_folder();  // before scores are computed
  if (cx.group()) cx.group()->require_equal("data", data.data.fingerprint());
  TrainSettings chosen = recipe.train;
  if (start.plans) chosen.select.strategy = Strategy::random;
  set_ = choose_set(chosen, spec_, static_cast<uint64_t>(recipe.run.seed), calibration(),
                    excluded_.units);
  if (cx.group()) cx.group()->require_equal("the selection", fingerprint_of(set_));
  place_codes();
  if (!place_.plan_for) ops::warm_up_linear(spec_.dtype, spec_.device);
  program_bytes_ = resident_bytes();
  driver_bytes_ = driver_bytes(spec_.device, !place_.plan_for);
  if (recipe.train.recompute == RecomputeLevel::automatic)
    spec_.recompute = Trainer::least_recompute(
        spec_, set_,
        limits_.on_gpu() ? limits_.gpu_bytes - std::min(limits_.gpu_bytes, driver_bytes_)
                         : limits_.host - std::min(limits_.host, program_bytes_));
  plan_ = plan_of(spec_);
}

void TrainingRun::place_codes() {
  const recipe::WeightType weights = recipe_.model.weights;
  const auto all = decode::codes_of(files_, {}, spec_.dtype),
             codes = decode::codes_of(files_, spec_.device, spec_.dtype);
  if (!all) return;
  const size_t n = codes ? codes->coded.size() : 0;
  const char* const numbers = dtype_name(spec_.dtype);
  const auto widened = [&](const std::string& why) {
    cx_.note_once(fmt::format("weights  quantized values in {} in memory {}", numbers, why));
  };
  if (weights != recipe::WeightType::automatic && !recipe::is_quantized(weights))
    return widened("as model.weights says");
  if (!writes_adapter())
    return widened("for train.method " + recipe::yaml_text(recipe_.train.method));
  if (const size_t others = all->coded.size() - n; others > 0)
    cx_.note_once(
        fmt::format("weights  {} quantized matrices in {} in memory, since {} multiplies no such "
                    "codes{}",
                    others, numbers, spec_.device.name(),
                    spec_.dtype == DType::f32 ? " with model.compute f32" : ""));
  if (n == 0) return;
  codes->int8_inputs = false;
  spec_.config.formats = codes;
  cx_.note_once(fmt::format("weights  {} matrices as {}, decoded to {} in parts for each product",
                            n, model::formats_text(spec_.config, spec_.dtype), numbers));
}

MemoryPlan TrainingRun::plan_of(const TrainerSpec& spec) const {
  MemoryPlan plan = Trainer::plan(spec, set_);
  plan.add("process/program and data", program_bytes_);
  plan.add(kDriverItem, driver_bytes_, spec_.device);
  plan_host_driver(spec_.device, spec_.dtype, !place_.plan_for, plan);
  if (recipe_.train.optimizer.finds_lr(recipe_.train.method))
    plan.add("process/values before the range test",
             static_cast<size_t>(set_.size) * sizeof(float));
  if (spec.divides_moments())
    plan.add("process/moments of all ranks, while they are saved",
             2 * static_cast<size_t>(set_.size) * sizeof(float));
  if (spec.n_ranks > 1 && spec.device.kind == Device::Kind::cuda) {
    plan.add(decode::Engine::kNcclItem, ranks::DeviceComm::kNcclBytesOfLarge, spec.device);
    plan.add("process/memory that ranks share", ranks::DeviceComm::inbox_bytes(spec.n_ranks),
             spec.device);
  }
  return plan;
}

CalibrationData TrainingRun::calibration() const {
  const auto seed = static_cast<uint64_t>(recipe_.run.seed);
  return {
      .source = [this, seed] { return std::move(decode::open_model(recipe_.model, seed).source); },
      .batches =
          [this] {
            const Epoch first = epoch(0);
            const double share = recipe_.train.select.calibration.value;
            const auto n =
                static_cast<int64_t>(std::ceil(share * static_cast<double>(first.n_steps())));
            std::vector<MicroBatch> all;
            for (int64_t step = 0; step < n; ++step)
              std::ranges::move(parts_of(first, step), std::back_inserter(all));
            return all;
          }};
}

std::string TrainingRun::place() const {
  const std::string device =
      limits_.on_gpu() ? fmt::format("{}, {}", cuda::device_info(limits_.gpu.index).name,
                                     cuda::gpu_isa_name(cuda::gpu_of(limits_.gpu.index).isa))
                       : fmt::format("cpu {}", isa_name(isa_in_use()));
  const int n = cx_.place().size;
  return fmt::format("{}, train.recompute {}{}{}", device, static_cast<int>(spec_.recompute),
                     spec_.config.formats ? ", weights in codes" : "",
                     n > 1 ? fmt::format(", {} ranks", n) : "");
}

RunIdentity TrainingRun::identity() const {
  RunIdentity id = {.settings = {{"model", files_.fingerprint},
                                 {"data", data_.data.fingerprint()},
                                 {"train.select.exclude", excluded_.fingerprint()}},
                    .place = place()};
  id.settings.merge(bit_settings(settings_));
  id.upgraded = upgraded;
  return id;
}

Frontier TrainingRun::frontier() const { return frontier_of(set_, spec_.config, spec_.recompute); }

Work TrainingRun::work_of(std::span<const MicroBatch> parts) const {
  return train::work_of(set_, frontier(), spec_.config, parts);
}

std::string TrainingRun::values_line() const {
  return fmt::format("train    {}  {} of {} values", recipe::yaml_text(recipe_.train.method),
                     set_.size, model::n_params(files_.config));
}

double TrainingRun::bytes_a_step() const {
  const int n = spec_.n_ranks;
  if (n == 1) return 0;
  // The gradient twice over the ring of ranks, as a sum and to all, and values to all.
  const double gradient = 2.0 * static_cast<double>(set_.size) * (n - 1) / n;
  const double values =
      spec_.divides_moments() ? static_cast<double>(Trainer::own_values(spec_, set_)) * (n - 1) : 0;
  return sizeof(float) * (gradient + values);
}

double TrainingRun::traffic_seconds() const {
  const auto& card = limits_.plan_for;
  if (!card || card->link_gbps == 0) return 0;
  return bytes_a_step() / (1e9 * (card->peer_gbps > 0 ? card->peer_gbps : card->link_gbps));
}

std::string TrainingRun::ranks_line() const {
  if (spec_.n_ranks == 1) return {};
  std::string text = fmt::format(
      "ranks    {}, each with the full model, a share of the micro-batches and the moments of {} "
      "values, {} sent by each per step",
      spec_.n_ranks, Trainer::own_values(spec_, set_),
      format_bytes(static_cast<size_t>(bytes_a_step())));
  if (const double s = traffic_seconds(); s > 0)
    text += fmt::format(", {:.3g} ms on the link", 1e3 * s);
  return text + "\n";
}

std::string TrainingRun::excluded_line() const {
  if (excluded_.n_adapters == 0) return {};
  return fmt::format("exclude  {} of {} adapter{} left out of the selection\n", excluded_.text(),
                     excluded_.n_adapters, excluded_.n_adapters == 1 ? "" : "s");
}

std::string TrainingRun::uneven_lines() const {
  return recipe_.train.method == Method::s2ft ? uneven_text(recipe_.train.select, spec_.config)
                                              : std::string();
}

std::string TrainingRun::text() const {
  const std::string chosen = recipe_.train.method == Method::s2ft
                                 ? fmt::format("chosen   {}\n", budget_text(set_, spec_.config))
                                 : std::string();
  return fmt::format("{}\n{}{}{}{}{}{}\n{}\n", values_line(), chosen, uneven_lines(),
                     excluded_line(), ranks_line(), describe(frontier()), size().text(),
                     decode::memory_lines(plan_, limits_));
}

void TrainingRun::add_to(nlohmann::ordered_json& json) const {
  json["trained_values"] = set_.size;
  if (excluded_.n_adapters > 0) json["excluded"] = excluded_.text();
  if (spec_.n_ranks > 1) {
    json["ranks"] = {{"n", spec_.n_ranks},
                     {"own_values", Trainer::own_values(spec_, set_)},
                     {"bytes_a_step", static_cast<size_t>(bytes_a_step())}};
    if (const double s = traffic_seconds(); s > 0) json["ranks"]["traffic_ms"] = 1e3 * s;
  }
  json["tflop"] = static_cast<double>(n_steps_) * size().work.done() * 1e-12;
  json.update(decode::memory_json(plan_, limits_));
}

RunCheckpoints TrainingRun::checkpoints() const {
  return {recipe_.output.path, identity(), recipe_.train.keep_checkpoints};
}

void TrainingRun::check_folder() const {
  if (recipe_.output.path.empty())
    throw recipe_error("output.path", "expected a folder for the run, found none")
        .hint("add -o FOLDER");
  if (files_.gguf && !writes_adapter())
    throw recipe_error("train.method", "{} writes a model folder, but the base {} is a GGUF file",
                       recipe::yaml_text(recipe_.train.method), files_.folder.string())
        .hint("train by s2ft, lora or dora, or take the original Hugging Face folder as base");
  if (start_.resumes && start_.begins_again)
    throw usage_error("--resume", "cannot be combined with --overwrite, which begins again");
  const bool holds_run = checkpoints().any() || std::filesystem::exists(file(kMetrics));
  io::claim_output(file(kMetrics));
  for (const char* folder : {kModel, kAdapter}) {
    std::error_code code;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(file(folder), code))
      io::claim_output(entry.path());
    if (!holds_run && std::filesystem::exists(file(folder)))
      throw usage_error("output.path", "{} exists, but {} holds no run", file(folder).string(),
                        recipe_.output.path.string())
          .hint("name another folder: this run would mix its files with the existing ones");
  }
  if (start_.resumes || start_.begins_again) return;
  if (holds_run)
    throw usage_error("output.path", "{} already holds a run", recipe_.output.path.string())
        .hint("continue it with --resume, begin again with --overwrite, or name another folder");
}

void TrainingRun::open_folder(RunCheckpoints& kept) const {
  std::error_code code;
  std::filesystem::create_directories(recipe_.output.path, code);
  if (code)
    throw input_error(recipe_.output.path.string(), "cannot create the folder: {}", code.message());
  for (const char* folder : {kModel, kAdapter}) io::remove_unfinished(file(folder));
  if (!start_.begins_again) return;
  kept.remove_all();
  for (const char* folder : {kModel, kAdapter}) std::filesystem::remove_all(file(folder), code);
  std::filesystem::remove(file(kMetrics), code);
  EventFile::remove_all(recipe_.output.path);
}

bool TrainingRun::writes_adapter() const {
  using enum Method;
  const Method method = recipe_.train.method;
  return method == s2ft || method == lora || method == dora;
}

void TrainingRun::export_trained(std::span<const float> values) const {
  if (!writes_model()) {
    cx_.note(files_.gguf ? "no model is written, because the base is a GGUF file"
                         : "no model is written, because a synthetic model has no folder");
    return;
  }
  export_model(file(kModel), files_.folder, files_.config, *calibration().source(), set_, values,
               spec_.dtype);
  if (const std::string prompt = first_prompt(); !prompt.empty()) {
    io::AtomicFile out(file(kModel) / kPrompt);
    out.write(prompt);
    out.commit();
  }
}

std::string TrainingRun::first_prompt() const {
  if (!files_.tokenizer || data_.train.empty()) return {};
  const text::Tokenizer& tokenizer = *files_.tokenizer;
  const SampleView sample = data_.data[data_.train.front()];
  std::span<const int32_t> ids = sample.ids.first(static_cast<size_t>(sample.supervised[0].begin));
  if (!ids.empty() && tokenizer.bos_id() == ids.front()) ids = ids.subspan(1);
  std::string text = tokenizer.decode(ids);
  const std::vector<int32_t> again = tokenizer.encode(text, {.add_bos = false});
  return std::ranges::equal(again, ids) ? text : std::string();
}

RunSize TrainingRun::size() const {
  const std::vector<MicroBatch> first = parts_of(epoch(0), 0);
  RunSize size{.n_steps = n_steps_,
               .steps_per_epoch = steps_per_epoch_,
               .work = work_of(first),
               .rate = product_rate(spec_.dtype, limits_)};
  for (const MicroBatch& b : first) size.tokens += static_cast<int64_t>(b.tokens.size());
  return size;
}

std::string TrainingRun::memory_advice() const {
  return train::memory_advice(
      spec_, std::max(data_.data.longest_rows(), data_.val_data.longest_rows()),
      recipe_.train.batches.max_tokens.value, recipe_.train.may_narrow_states(),
      [&](const TrainerSpec& spec) {
        MemoryPlan plan = plan_of(spec);
        plan.add("process/of the next one, which differs a little", size_t{1} << 20);
        return limits_.fits(plan);
      });
}

void TrainingRun::run() {
  try {
    decode::admit_plan(cx_, plan_, limits_);
  } catch (Error& e) {
    throw std::move(e).hint(memory_advice());
  }
  RunCheckpoints kept = checkpoints();
  if (writes()) open_folder(kept);
  if (cx_.group()) (void)cx_.group()->agree(0);  // the folder is there
  spec_.comm = decode::comm_of(cx_, spec_.device);
  auto trainer = std::make_unique<Trainer>(spec_, set_, calibration().source());
  RunProgress at = kept.resume(*trainer, [&](const std::string& text) { cx_.warn(text); });
  if (cx_.group()) cx_.group()->require_equal("checkpoint", std::to_string(at.done));
  if (const size_t n = parts_of(epoch(0), 0).size(); n < static_cast<size_t>(cx_.place().size))
    cx_.warn(
        fmt::format("train.micro_tokens: the first step has {} micro-batch{} for {} ranks, so some "
                    "ranks wait. Lower it, or raise train.batch",
                    n, n == 1 ? "" : "es", cx_.place().size));
  if (at.done > 0) cx_.note(fmt::format("resuming after step {} of {}", at.done, n_steps_));
  const RunSize whole = size();
  cx_.note(values_line());
  cx_.note(whole.text(at.done));
  if (std::string uneven = uneven_lines(); !uneven.empty()) {
    uneven.pop_back();
    cx_.note(uneven);
  }
  RunReport report(cx_, whole, at.done);
  go_on(*trainer, at, kept, report);
  if (at.best.found() && at.best.step != at.done) kept.load_best(*trainer, at.best);
  report.finish(at);
  const std::vector<float> values = trainer->values();
  if (!writes()) return;
  const Method method = recipe_.train.method;
  const bool low_rank = method == Method::lora || method == Method::dora;
  if (low_rank)
    export_low_rank(file(kAdapter), recipe_.model.path.value, recipe_.train, set_, files_.config,
                    values);
  else
    export_adapter(file(kAdapter), files_, recipe_.train, recipe_.run.seed, *trainer);
  if (writes_adapter()) cx_.print(fmt::format("adapter  {}", file(kAdapter).string()));
  trainer.reset();  // the model that is written takes its place in memory
  export_trained(values);
  if (writes_model()) cx_.print(fmt::format("model    {}", file(kModel).string()));
}

}  // namespace tandem::train
