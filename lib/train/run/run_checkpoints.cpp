#include "train/run/run_checkpoints.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/error.h"
#include "io/atomic_file.h"

namespace tandem::train {
namespace {

constexpr std::string_view kPrefix = "step-", kSuffix = ".safetensors";

/// The step in a checkpoint's name.
std::optional<int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kPrefix)) return {};
  name.remove_prefix(kPrefix.size());
  int64_t step = 0;
  const auto [at, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  if (error != std::errc() || step < 1) return {};
  name.remove_prefix(static_cast<size_t>(at - name.data()));
  return name == kSuffix ? std::optional(step) : std::nullopt;
}

}  // namespace

RunCheckpoints::RunCheckpoints(std::filesystem::path folder, RunIdentity identity, int keep)
    : folder_(std::move(folder)),
      identity_(std::move(identity)),
      keep_(static_cast<size_t>(keep)) {}

std::filesystem::path RunCheckpoints::file(int64_t step) const {
  return folder_ / fmt::format("{}{:06}{}", kPrefix, step, kSuffix);
}

std::vector<int64_t> RunCheckpoints::steps_in_folder() const {
  std::vector<int64_t> steps;
  std::error_code code;
  for (const auto& entry : std::filesystem::directory_iterator(folder_, code)) {
    const std::string name = entry.path().filename().string();
    const auto step = step_of(name);
    if (step && file(*step).filename() == name) steps.push_back(*step);
  }
  std::ranges::sort(steps, std::greater<>());
  return steps;
}

void RunCheckpoints::remove_all() {
  std::error_code code;
  for (const int64_t step : steps_in_folder()) std::filesystem::remove(file(step), code);
  io::remove_unfinished(folder_);
  kept_.clear();
}

RunProgress RunCheckpoints::resume(Trainer& trainer,
                                   const std::function<void(const std::string&)>& warn) {
  io::remove_unfinished(folder_);
  const std::vector<int64_t> steps = steps_in_folder();
  std::optional<CheckpointInfo> found;
  for (const int64_t step : steps) {
    try {
      const CheckpointInfo info = found ? check_checkpoint(file(step), step)
                                        : load_checkpoint(file(step), trainer, identity_, step);
      kept_.push_back({step, info.progress.best.step});
      if (!found) found = info;
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::input) throw;
      warn(fmt::format("{}. Trying an older checkpoint", e.what()));
    }
  }
  std::ranges::reverse(kept_);
  if (!found && !steps.empty())
    throw input_error(folder_.string(), "all of its {} checkpoints are unreadable", steps.size())
        .hint("begin again with --overwrite");
  if (!found) return {};
  check_found(*found, steps.front(), warn);
  return found->progress;
}

void RunCheckpoints::check_found(CheckpointInfo& found, int64_t newest,
                                 const std::function<void(const std::string&)>& warn) const {
  RunProgress& at = found.progress;
  if (at.done < newest)
    warn(fmt::format("{} is intact: the run resumes from it and repeats the later steps",
                     file(at.done).string()));
  if (found.place != identity_.place)
    warn(
        fmt::format("the run moved from {} to {}: sums are rounded differently, so its values will "
                    "differ in their last bits",
                    found.place, identity_.place));
  const auto is_best = [&](const Kept& k) { return k.step == at.best.step; };
  if (at.best.found() && std::ranges::none_of(kept_, is_best)) {
    warn(
        fmt::format("{}, the checkpoint of the best validation so far, is missing or damaged. The "
                    "best is now chosen among later checkpoints",
                    file(at.best.step).string()));
    at.best = {.last = at.best.last};
  }
}

void RunCheckpoints::save(Trainer& trainer, const RunProgress& progress) {
  try {
    save_checkpoint(file(progress.done), trainer, progress, identity_);
  } catch (Error& e) {
    if (!kept_.empty())
      e.add_context(fmt::format("the checkpoint of step {} is intact", kept_.back().step));
    throw;
  }
  if (!trainer.writes()) return;
  std::erase_if(kept_, [&](const Kept& k) { return k.step >= progress.done; });
  kept_.push_back({progress.done, progress.best.step});
  remove_old();
}

void RunCheckpoints::remove_old() {
  if (kept_.size() <= keep_) return;
  const auto last = kept_.end() - static_cast<std::ptrdiff_t>(keep_);
  // Any of the last ones may be gone on from, and ends with the best that it knows or a better one.
  const auto is_best = [&](const Kept& k) {
    return std::any_of(last, kept_.end(), [&](const Kept& l) { return l.best == k.step; });
  };
  std::vector<Kept> left;
  for (auto it = kept_.begin(); it != kept_.end(); ++it) {
    std::error_code code;
    if (it >= last || is_best(*it))
      left.push_back(*it);
    else
      std::filesystem::remove(file(it->step), code);
  }
  kept_ = std::move(left);
}

void RunCheckpoints::load_best(Trainer& trainer, const BestValidation& best) const {
  load_checkpoint(file(best.step), trainer, identity_, best.step);
}

}  // namespace tandem::train
