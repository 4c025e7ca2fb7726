#include "train/run/metrics_file.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/atomic_file.h"
#include "io/file.h"
#include "io/jsonl.h"

namespace tandem::train {
namespace {

constexpr const char* kStep = "step";

constexpr const char* kLoss = "loss";
constexpr const char* kValLoss = "val_loss";

/// What a resumed run keeps of the file.
struct Kept {
  std::string lines;
  std::optional<double> first_loss;
};

/// The lines of the first `done` steps. A line that a killed run has cut is dropped with those
/// after the last checkpoint.
Kept kept_lines(const std::filesystem::path& path, int64_t done) {
  if (!std::filesystem::exists(path)) return {};
  Kept kept;
  const std::string text = io::read_own_output(path);
  const size_t whole = io::whole_lines(text, path.string(), "{\"step\":");
  for (size_t at = 0, number = 1; at < whole; ++number) {
    const size_t end = text.find('\n', at);
    const auto line = nlohmann::json::parse(text.substr(at, end - at), nullptr, false);
    if (!line.is_object() || !line.contains(kStep) || !line[kStep].is_number_integer())
      throw input_error(fmt::format("{}:{}", path.string(), number),
                        "expected a step's line as s2ft-train writes it, found another")
          .hint("move the file away, or name another output.path");
    if (done > 0 && line[kStep].get<int64_t>() <= done) {
      kept.lines += text.substr(at, end + 1 - at);
      if (!kept.first_loss && line.contains(kLoss) && line[kLoss].is_number())
        kept.first_loss = line[kLoss].get<double>();
    }
    at = end + 1;
  }
  return kept;
}

}  // namespace

MetricsFile::MetricsFile(const std::filesystem::path& path, int64_t done, StepLog log)
    : path_(path) {
  const Kept kept = kept_lines(path, done);
  first_loss_ = kept.first_loss;
  io::AtomicFile whole(path);
  whole.write(kept.lines);
  whole.commit();
  out_.open(path, std::ios::app);
  sync();
  if (log == StepLog::tensorboard) events_.emplace(path.parent_path(), done + 1);
}

void MetricsFile::add_range_test(const RangeTest& test) {
  nlohmann::ordered_json tried = nlohmann::ordered_json::array();
  for (const TriedRate& t : test.tried) {
    tried.push_back({{"lr", t.rate}, {kLoss, nullptr}});
    if (std::isfinite(t.loss)) tried.back()[kLoss] = t.loss;
  }
  add({{kStep, 0},
       {"range_test",
        {{"lr", test.rate},
         {"steps", test.steps},
         {"start_loss", test.start},
         {"tried", std::move(tried)}}}});
}

void MetricsFile::add_step(int64_t step, int64_t epoch, const StepResult& r, double seconds) {
  if (!first_loss_) first_loss_ = r.loss.mean();
  add({{kStep, step},
       {"epoch", epoch},
       {kLoss, r.loss.mean()},
       {"tokens", r.n_rows},
       {"supervised_tokens", r.loss.n_tokens},
       {"gradient_norm", r.gradient_norm},
       {"clip_scale", r.clip_scale},
       {"lr", r.rate},
       {"skipped", r.skipped},
       {"seconds", seconds},
       {"tokens_per_s", static_cast<double>(r.n_rows) / seconds}});
}

void MetricsFile::add_validation(int64_t step, double loss, const BestValidation& best) {
  nlohmann::ordered_json line = {{kStep, step}, {kValLoss, loss}};
  if (best.found()) line.update({{"best_step", best.step}, {"best_val_loss", best.loss}});
  add(line);
}

void MetricsFile::add(const nlohmann::ordered_json& line) {
  out_ << line.dump() << '\n';
  sync();
  if (!events_) return;
  const std::string group = line.contains(kValLoss) ? "validation/" : "train/";
  std::vector<EventFile::Scalar> scalars;
  for (const auto& [key, value] : line.items())
    if (value.is_number() && key != kStep) scalars.emplace_back(group + key, value.get<double>());
  if (!scalars.empty()) events_->add(line[kStep].get<int64_t>(), scalars);
}

void MetricsFile::sync() {
  out_.flush();
  if (!out_) throw input_error(path_.string(), "cannot be written").hint("is the disk full?");
}

}  // namespace tandem::train
